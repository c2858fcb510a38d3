"""Does a part compose? The public conformance battery.

A part that passes `check_part` computes the same whether it is compiled or not, whether clients are trained
one after another or together, in whatever order, on however many devices, for one seed or several in one program, and
however much padding there is; and it can be combined with every other part. The README has one that passes. This one
asks for small features too, but it also sees what fills up the last batch of a client, and the battery says so. A
check in which nothing came up that it looks at has not passed, it is skipped, and its message says what to pass.

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
from fedjax_bal.testing.outcome import CheckResult, ConformanceError, ConformanceReport

__all__ = ["CheckResult", "ConformanceError", "ConformanceReport", "check_part", "check_recipe"]
