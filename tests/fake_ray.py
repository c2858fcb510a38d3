"""As much of Ray as the engine uses, in this process: what goes to a worker and back is pickled, and workers die."""

import pickle
from types import SimpleNamespace


class RayError(Exception):
    """Any of Ray's errors."""


class RayTaskError(RayError):
    """What a worker's own error arrives as."""

    def __init__(self, cause):
        super().__init__(repr(cause))
        self.cause = cause


class ActorDiedError(RayError):
    """A worker is gone."""


class FakeRay:
    """A cluster of machines.

    Args:
        machines: what each of them has.
        before: called before each call of a worker with the call's name and its number among those of that name; what
            it raises is what becomes of the call.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, *machines, before=lambda name, number: None):
        self.machines = machines or ({"CPU": 1.0},)
        self.before, self.asked = before, []
        self.calls, self.alive, self.most = {}, 0, 0

    def nodes(self):
        """The machines."""
        return [{"Alive": True, "Resources": machine} for machine in self.machines] + [
            {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        ]

    def remote(self, kind):
        """A kind of workers."""
        return SimpleNamespace(options=lambda **asked: SimpleNamespace(remote=lambda *own: _Actor(self, kind, own)))

    def wait(self, refs, timeout):
        """The last one first: nothing may depend on the order."""
        return [refs[-1]], refs[:-1]

    def get(self, ref):
        """Does the work."""
        return ref()

    def kill(self, actor):
        """Ends a worker."""
        actor.end()


class _Actor:
    def __init__(self, ray, kind, arguments):
        self._ray, self._worker, self._open = ray, kind(*arguments), True
        ray.alive += 1
        ray.most = max(ray.most, ray.alive)

    def end(self):
        """Ends it."""
        self._ray.alive -= self._open
        self._open = False

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: _Ref(self, name, pickle.dumps(arguments)))


class _Ref:
    def __init__(self, actor, name, arguments):
        self.actor, self.name, self.arguments = actor, name, arguments

    def __call__(self):
        ray = self.actor._ray
        number = ray.calls[self.name] = ray.calls.get(self.name, 0) + 1
        ray.before(self.name, number)
        try:
            value = getattr(self.actor._worker, self.name)(*pickle.loads(self.arguments))
        except Exception as error:
            raise RayTaskError(error) from error
        return pickle.loads(pickle.dumps(value))
