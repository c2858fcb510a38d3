"""A method's knowledge of the clients' images: its generator's images and shared prototypes."""

from typing import Any

import jax
import numpy as np

from fedjax_bal.engine.device import exhibits
from fedjax_bal.engine.host.placement import fetch
from fedjax_bal.engine.host.simulation import Simulation, Snapshot
from fedjax_bal.parts import Server
from fedjax_bal.types import Exhibit


def generated_images(simulation: Simulation, snapshot: Snapshot) -> np.ndarray | None:
    """Images from a part's generator, pixels `UInt8[c, S, H, W, K]`: S of each of the first c classes.

    None if no part has a generator, or none is trained yet.
    """
    images = [exhibit.images for exhibit in _exhibits(simulation, snapshot) if exhibit.images is not None]
    if not images:
        return None
    federation = simulation.federation
    pixels = (fetch(images[0]) * np.asarray(federation.std) + np.asarray(federation.mean)) * 255
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)


def shared_prototypes(simulation: Simulation, snapshot: Snapshot) -> tuple[Any, Any] | None:
    """The feature vectors of the classes that clients and server share, `Float[C, F]`, and which are known, `Bool[C]`.

    None if the method shares parameters only.
    """
    shared = [show.prototypes for show in _exhibits(simulation, snapshot) if show.prototypes is not None]
    return shared[0] if shared else None


def shares_prototypes(simulation: Simulation) -> bool:
    """True if the method shares a feature vector of each class."""
    state = simulation.state_shapes().state
    shown = jax.eval_shape(exhibits, simulation.setting, jax.random.key(0), state, np.int32(0), simulation.stored)
    return any(exhibit.prototypes is not None for exhibit in shown.values())


def _exhibits(simulation: Simulation, snapshot: Snapshot) -> list[Exhibit]:
    """The exhibits of the server parts that have begun."""
    begun = [part.slot for part in simulation.setting.parts_with(Server) if snapshot.round > part.first_round]
    state = snapshot.state._replace(optimizer=(), memory={})
    given = simulation.setting, jax.random.key(0), state, np.int32(snapshot.round - 1), simulation.stored
    shown = jax.jit(simulation.setting.traced(exhibits))(*given) if begun else {}
    return [shown[slot] for slot in begun]
