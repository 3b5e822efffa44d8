from augment.compiled.memory import *  # noqa
from augment.compiled.tokens import *  # noqa
