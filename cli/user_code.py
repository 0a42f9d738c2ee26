"""``module:attr`` options: the events and steps of a user's program, imported as that program would."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from tailfold.engine.agent.events import AGENT_UPCASTERS, RunStarted
from tailfold.engine.agent.loop import Agent
from tailfold.engine.errors import BadArgument, BadSteps, EngineError
from tailfold.engine.events import Event, check_event_type
from tailfold.engine.fold import Fold
from tailfold.engine.schema_files import chain_of
from tailfold.upcasters import StepsError, Upcasters

EventsOption = Annotated[
    str | None,
    typer.Option(
        "--events",
        metavar="MODULE:ATTR",
        help="An Upcasters, or a list of event classes, of your own program. Default: those of agents' runs.",
        show_default=False,
    ),
]

AgentOption = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="MODULE:ATTR",
        help="An Agent of your own program, or a function that makes one of run_started. Default: the shipped one.",
        show_default=False,
    ),
]

FoldOption = Annotated[
    str | None,
    typer.Option(
        "--fold",
        metavar="MODULE:ATTR",
        help="A Fold of your own program. Default: that of agents, for their runs.",
        show_default=False,
    ),
]


def fold_of(given: str) -> Fold[Any]:
    """Return the fold that the option names; raise `BadArgument` if it is none."""
    found = imported("--fold", given)
    if not isinstance(found, Fold):
        raise BadArgument(f"--fold {given} is of type {type(found).__name__}, not a tailfold.engine.Fold")
    return found


def request_of(given: str) -> Callable[[Any], Any]:
    """Return what makes a request from a state: a function, or an Agent's; raise `BadArgument`."""
    found = imported("--request", given)
    if isinstance(found, Agent):
        return found.request
    if not callable(found) or isinstance(found, type):
        raise BadArgument(
            f"--request {given} is of type {type(found).__name__}, not an Agent or a function of the state"
        )

    def request(state: Any) -> Any:
        try:
            return found(state)
        except Exception as error:
            raise BadArgument(f"--request {given} raised {type(error).__name__}: {error}") from error

    return request


def agent_of(given: str, started: RunStarted) -> Agent:
    """Return the agent that the option names for a run; raise `BadArgument` if it is none, or another."""
    found = imported("--agent", given)
    if not isinstance(found, Agent | type) and callable(found):
        try:
            found = found(started)
        except EngineError:
            raise
        except Exception as error:
            raise BadArgument(f"--agent {given} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Agent):
        raise BadArgument(
            f"--agent {given} is of type {type(found).__name__}, not an Agent, nor a function that makes one of"
            " run_started"
        )
    if found.name != started.agent:
        raise BadArgument(f"the run belongs to agent {started.agent!r}, and --agent {given} is {found.name!r}")
    return found


def upcasters_of(given: str | None) -> Upcasters:
    """Return the events and steps that the option names, checked; raise `BadArgument` or `BadSteps`."""
    if given is None:
        return AGENT_UPCASTERS
    found = imported("--events", given)
    upcasters = found if isinstance(found, Upcasters) else Upcasters(events=_classes(given, found))
    for event in upcasters.events:
        check_event_type(event)
    chain_of(upcasters)
    return upcasters


def imported(option: str, given: str) -> Any:
    """Return what ``module:attr`` names; modules are looked for here as well; raise `BadArgument` or `BadSteps`."""
    module, colon, attribute = given.partition(":")
    if not colon or not module or not attribute or module.startswith("."):
        raise BadArgument(f"{option} is MODULE:ATTR, as in {option} shop.events:UPCASTERS, not {given!r}")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as python -m does
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(module)
    except StepsError as error:
        raise BadSteps(f"{option} {given}: {error}") from error
    except EngineError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise BadArgument(
                f"{option} {given}: there is no module {error.name!r} here or among the installed packages"
            ) from None
        raise BadArgument(f"{option} {given}: importing {module} failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise BadArgument(f"{option} {given}: importing {module} raised {type(error).__name__}: {error}") from error
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise BadArgument(f"{option} {given}: {module} has no {attribute!r}") from None
    return found


def _classes(given: str, found: Any) -> list[type[Event]]:
    if isinstance(found, type):
        hint = f" (one class: put it into a list, [{found.__name__}])" if issubclass(found, Event) else ""
        raise BadArgument(f"--events {given} is a class, not an Upcasters or a list of event classes{hint}")
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise BadArgument(
            f"--events {given} is of type {type(found).__name__}, not an Upcasters or a list of event classes"
        )
    return list(found)
