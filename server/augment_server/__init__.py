"""The gRPC service: the library's three verbs in worker processes, behind ``proto/augment/v1``.

::

    service      the calls: decodes requests, makes responses
    core         assembles the parts
    scheduler    decides which job runs when, and records its outcome
    worker       the process that does the work; workers: the pool of such processes
    uploads, jobs, artifacts     the stored data, in a folder and a database (storage)

``import augment`` never imports this package.
"""
