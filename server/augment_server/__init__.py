"""The gRPC service: the library's three verbs in worker processes, behind ``proto/augment/v1``.

::

    service      what a call says and answers, and nothing else
    core         the parts put together
    scheduler    which job runs when, and what its end means
    worker       the process that does the work; workers: the ones that wait for some
    uploads, jobs, artifacts     what is kept, in a folder and a database (storage)

``import augment`` never imports this package.
"""
