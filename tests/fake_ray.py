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
        before: called before each event of a worker with the name of the event before it, and its number among those
            of that name; what it raises is what becomes of the worker.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, *machines, before=lambda name, number: None):
        self.machines = machines or ({"CPU": 1.0},)
        self.before, self.seen, self.alive, self.arguments = before, {}, 0, []

    def nodes(self):
        """The machines."""
        return [{"Alive": True, "Resources": machine} for machine in self.machines] + [
            {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        ]

    def remote(self, kind):
        """A kind of workers."""
        return SimpleNamespace(options=lambda **asked: SimpleNamespace(remote=lambda *own: _Actor(self, kind, own)))

    def wait(self, streams, timeout):
        """The last one first: nothing may depend on the order."""
        return [streams[-1]], streams[:-1]

    def get(self, ref):
        """The value, or the error in its place."""
        if isinstance(ref, Exception):
            raise ref
        return pickle.loads(ref)

    def kill(self, actor):
        """Ends a worker."""
        self.alive -= actor.alive
        actor.alive = False

    def stream(self, events):
        """References to what a worker's method yields, made as they are asked for."""
        name, number = "", 0
        try:
            while True:
                self.before(name, number)
                event = next(events)
                name = type(event).__name__
                number = self.seen[name] = self.seen.get(name, 0) + 1
                yield pickle.dumps(event)
        except StopIteration:
            return
        except RayError as error:
            yield error
        except Exception as error:
            yield RayTaskError(error)


class _Actor:
    def __init__(self, ray, kind, arguments):
        worker = kind(*arguments)
        ray.arguments.append(arguments)
        ray.alive += 1
        train = lambda *own: ray.stream(worker.train(*pickle.loads(pickle.dumps(own))))
        self.train = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=train))
        self.stop, self.alive = SimpleNamespace(remote=worker.stop), True
