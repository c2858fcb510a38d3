"""Methods and more outside the package, as a user would keep them: `--plugin tests/plugins/methods`."""

from . import ccvr, creff, feddecorr, feddisco, fedntd, fedrod, fedsam, focal, setting  # noqa: F401
