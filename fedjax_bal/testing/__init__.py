"""The public conformance battery: checks that a part composes with all others, and that a model works with the engine.

A part that passes `check_part` gives the same results with clients trained one after another or together, in any order,
on any number of devices, for one seed or several in one program, and with any amount of padding; a client that delivers
nothing, or nan, leaves no trace; and the part can be combined with every other part. The guide shows a part that
passes. The part below also penalises large features, but includes the padding of a client's last batch, which the
battery reports. A check that the runs never exercise is reported as skipped, not passed.

>>> from fedjax_bal import check_part
>>> from fedjax_bal.parts import Loss, part
>>>
>>> @part
... class Leaky(Loss):
...     '''Adds weight times the mean squared norm of the features.'''
...
...     weight: float = 0.01
...
...     def loss(self, outputs, batch, params, ctx):
...         return self.weight * (outputs.features**2).sum(-1).mean()
>>>
>>> try:
...     check_part(Leaky(0.1))
... except ConformanceError as error:
...     print(error.report.failed)
('padded rows',)
"""

from fedjax_bal.testing.battery import check_part, check_recipe
from fedjax_bal.testing.model_battery import check_model
from fedjax_bal.testing.report import CheckResult, ConformanceError, ConformanceReport

__all__ = ["CheckResult", "ConformanceError", "ConformanceReport", "check_model", "check_part", "check_recipe"]
