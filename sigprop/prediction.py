"""`predict`: theory first, the real model as its judge, and simulation where theory cannot follow.

theory           moments from the model's trace, without weights, of any size
verification     the real model at a few fresh initializations, where that is cheap: rows agree or are disputed
simulation       the same, where there is no theory: every model that runs is predicted
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from sigprop.batches import as_batch, shortened
from sigprop.capture import predict as predict_by_theory
from sigprop.capture.predict import TheoryOptions
from sigprop.compat import ConvNd
from sigprop.distributions import build, factory_of_model
from sigprop.errors import Fault, FaultWarning, InputError, SigpropError, UnsupportedError, faults_are_raised, require
from sigprop.isolation import observers, undisturbed
from sigprop.losses import LossChoice
from sigprop.results import Profile
from sigprop.verification import Simulation, verified, with_law_errors
from sigprop.verification.long_contexts import LongContext
from sigprop.verification.reduced import verified_at_reduced_size
from sigprop.verification.work import batch_entries, parameter_count

DRAWS = 24
OPERATIONS = 3e10
"""Of all passes of a verification that nobody asked for, at least: about a second. More where theory took more."""
FOR_GUESSES = 4.0
"""Times more where most of what theory says is a guess."""
CHEAP_PARAMETERS, CHEAP_ENTRIES, CHEAP_TOKENS = 70_000_000, 300_000, 1024
"""Of a model and a batch that are run with that many operations; in proportion with more."""
SIMULATED_DRAWS, SIMULATED_OPERATIONS = 32, 2e11
FOLLOWED, FOLLOWED_PIXELS = 2048, 640
"""Positions of a tensor that theory follows where the model can as well be run: all pairs of more take minutes. Of
images fewer: a convolution sums the pairs of all windows (at 1,152 positions nine took 35 s, a simulation 2)."""
REPLAYED = 150_000
"""Calls of functions that theory draws at most where the model can as well be run: about ten seconds."""
LARGEST = 400_000_000
"""Parameters of a model that is still run."""


def predict(
    model: nn.Module | Callable[[], nn.Module],
    batch: Any,
    *,
    verify: int | None = None,
    tokens: int = 128,
    **options: Any,
) -> Profile:
    """Moments of every module output and of its gradient, and of every parameter's gradient.

    verify: how many initializations of the real model may be drawn to judge the prediction; 0 for none, and what theory
        refuses is then raised. When None, up
        to 24 are drawn where that costs about as much as the prediction, both counted in operations: not for large
        models. A model of more than 400 million parameters is judged by a small one of the same blocks
        (`sigprop.verification.reduced`).
    The other options are those of theory, `sigprop.capture.predict.TheoryOptions`. What it cannot follow is simulated,
    and says so.
    """
    require(verify is None or verify >= 0, "verify", verify, "None, or a number of initializations")
    TheoryOptions(tokens=tokens, **options)
    with undisturbed() as interrupts, interrupts.let_through():  # drawn copies must not see hooks of another call
        loaded = model if isinstance(model, nn.Module) else build(model)
        _require_shapes(loaded)
        found = _predicted(loaded, as_batch(batch, loaded), verify, tokens, options)
        return _without_what_hooks_do(found, loaded)


def _require_shapes(model: nn.Module) -> None:
    """Lazy layers that have seen no batch have no shapes."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise InputError(
                f"parameter {name!r} of {type(model).__name__} belongs to a lazy layer that has seen no batch: needs a "
                "shape; run the model on one batch first, in the function that builds it where there is one"
            )


def _without_what_hooks_do(found: Profile, model: nn.Module) -> Profile:
    """Hooks on a given module are its user's and are not run: what they change is not known. Those that a constructor
    registers are run with the draws, where there are any."""
    hooked = sorted({name for name, _, _ in observers(model)})
    if not hooked or (factory_of_model(model) is not None and "verification" in found.meta):
        return found
    for row in (*found.sites, *found.parameters):
        row.status, row.reason = (
            "assumed",
            f"forward hooks on {', '.join(hooked)} were not run: what they change is left out",
        )
        row.stated_errors.clear()
    return found


def _predicted(loaded: nn.Module, batch: Any, verify: int | None, tokens: int, options: dict[str, Any]) -> Profile:
    loss, seed = options.get("loss"), options.get("seed", 0)
    long = _long_context(loaded, batch, verify, tokens, options)
    if isinstance(long, Profile):
        return long
    if verify is None:
        options = limits(loaded, batch) | options
    try:
        found = _by_theory(loaded, batch, tokens, options)
    except SigpropError as obstacle:
        if verify == 0 or (isinstance(obstacle, Fault) and faults_are_raised()):
            raise
        return _simulated(loaded, batch, loss, seed, obstacle)
    if verify == 0:
        return found
    if isinstance(long, LongContext):
        return long.continued(found)
    allowed = max(OPERATIONS, found.meta.get("operations", 0.0)) * (FOR_GUESSES if _is_guessed(found) else 1.0)
    if verify is None and not _is_cheap(loaded, batch, allowed):
        return found if long is None else _not_verified(found, long)
    if parameter_count(loaded) > LARGEST:
        return _verified_small(found, loaded, loss, seed, verify or DRAWS)
    return _verified(found, loaded, batch, loss, seed, verify or DRAWS, math.inf if verify else allowed)


def limits(model: nn.Module, batch: Any) -> dict[str, int]:
    """What theory is kept to where the model can as well be run; nothing where it cannot."""
    over_images = any(isinstance(module, ConvNd) and not isinstance(module, nn.Conv1d) for module in model.modules())
    if over_images and parameter_count(model) <= LARGEST:
        return {"positions": FOLLOWED_PIXELS, "replayed": REPLAYED}
    return {"positions": FOLLOWED, "replayed": REPLAYED} if _is_cheap(model, batch) else {}


def _by_theory(model: nn.Module, batch: Any, tokens: int, options: dict[str, Any]) -> Profile:
    """The theory's prediction or its refusal; whatever else it raises is a fault."""
    try:
        return predict_by_theory(model, batch, tokens=tokens, **options)
    except SigpropError:
        raise
    except Exception as error:
        raise Fault(f"{type(error).__name__}: {error}") from error


def _is_guessed(found: Profile) -> bool:
    rows = (*found.sites, *found.parameters)
    return 2 * sum(row.status == "assumed" for row in rows) > len(rows)


def _is_cheap(model: nn.Module, batch: Any, allowed: float = OPERATIONS) -> bool:
    _, cut = shortened(batch, CHEAP_TOKENS)
    times = allowed / OPERATIONS
    parameters = min(times * CHEAP_PARAMETERS, LARGEST)
    return cut is None and parameter_count(model) <= parameters and batch_entries(batch) <= times * CHEAP_ENTRIES


def _long_context(
    model: nn.Module, batch: Any, verify: int | None, tokens: int, options: dict[str, Any]
) -> Profile | LongContext | Exception | None:
    """Of a context too long for theory in a model of small size: its simulation, or what can be run of it, or why
    nothing can."""
    _, cut = shortened(batch, tokens)
    asked = verify is None and set(options) <= {"loss", "seed"}
    if not asked or cut is None or _is_cheap(model, batch) or parameter_count(model) > CHEAP_PARAMETERS:
        return None
    try:
        found = LongContext(model, batch, options.get("loss"), options.get("seed", 0), cut[0])
        simulated = found.simulated()
        return found if simulated is None else simulated
    except Exception as error:  # theory may have an answer
        return error


def _not_verified(found: Profile, error: Exception) -> Profile:
    found.meta["verification"] = f"not possible: {error}"
    return found


def _verified(
    found: Profile, model: nn.Module, batch: Any, loss: LossChoice, seed: int, most: int, operations: float
) -> Profile:
    try:
        return verified(found, Simulation(model, batch, loss, seed), most, operations)
    except Exception as error:  # theory has an answer: that the model cannot be run here is no reason to refuse it
        return _not_verified(found, error)


def _verified_small(found: Profile, model: nn.Module, loss: LossChoice, seed: int, most: int) -> Profile:
    try:
        return verified_at_reduced_size(found, model, loss, seed, most)
    except Exception as error:
        found.meta["verification"] = f"too large to be run; not possible at reduced size: {error}"
        return found


def _simulated(model: nn.Module, batch: Any, loss: LossChoice, seed: int, obstacle: SigpropError) -> Profile:
    """What the real model shows, where theory met an obstacle; a fault of its own it says aloud."""
    why = str(obstacle)
    if isinstance(obstacle, Fault):
        why = f"fault of sigprop: {why}; simulated instead"
        warnings.warn(f"{why}. Please report it.", FaultWarning, stacklevel=2)
    if parameter_count(model) > LARGEST:
        raise UnsupportedError(f"{why}\n  The model is too large to be simulated instead.") from obstacle
    try:
        simulation = Simulation(model, batch, loss, seed)
        simulation.until_precise(SIMULATED_DRAWS, SIMULATED_OPERATIONS)
    except InputError:
        raise
    except Exception as error:
        raise UnsupportedError(f"{why}\n  It cannot be simulated instead: {error}") from obstacle
    profile = simulation.summary()
    for row in (*profile.sites, *profile.parameters):
        row.reason = row.reason or f"simulated with {len(simulation.profiles)} initializations: theory cannot follow"
    profile.meta |= {"source": "predict", "fault" if isinstance(obstacle, Fault) else "theory": why}
    return with_law_errors(profile, simulation)
