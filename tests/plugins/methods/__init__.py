"""Methods and more outside the package, as a user would keep them: `--plugin tests/plugins/methods`."""

from . import setting, small  # noqa: F401
