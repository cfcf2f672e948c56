"""Registry of all mechanisms by name, and the unions of their questions and plans.

A mechanism of another distribution registers itself by an entry point of the group
`blindtally.mechanisms`, whose value is a mechanism or a tuple of mechanisms. For example, the
`pyproject.toml` of a plug-in with the module `yes_no` has

    [project.entry-points."blindtally.mechanisms"]
    yes-no = "yes_no:MECHANISM"

From then on its name is one of a question's `mechanism` everywhere. Server, devices and analyst
must all have the plug-in, as they must have the same version of this package.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from importlib.metadata import EntryPoint, entry_points
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, get_args

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter

from protocol.mechanism import Mechanism, SumMechanism
from protocol.mechanisms.central.hierarchical_histogram import HierarchicalHistogram
from protocol.mechanisms.central.triehh import TrieHh
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt
from protocol.mechanisms.number_sums import NumberSums
from protocol.mechanisms.reports.dictionary import DICTIONARY_MECHANISMS
from protocol.mechanisms.reports.prefix_extension import PrefixExtensionMechanism
from protocol.mechanisms.tracked.mechanism import Tracked
from protocol.question_and_plan import Plan, Question
from protocol.report_mechanism import ReportMechanism

PLUG_IN_GROUP: Final = "blindtally.mechanisms"
# Loaded as a plug-in is, but without metadata, so that a clone without an installation has them.
_REFERENCE: Final = EntryPoint(
    "reference", "protocol.reference_mechanisms.registry:MECHANISMS", PLUG_IN_GROUP
)
# In the order in which lists show them.
_OWN_MECHANISMS: Final[tuple[Mechanism[Any, Any], ...]] = (
    Tracked(),
    AdaptiveIblt(),
    HierarchicalHistogram(),
    NumberSums(),
    TrieHh(),
    *DICTIONARY_MECHANISMS,
    PrefixExtensionMechanism(),
)


def _plugged_in() -> Iterator[Mechanism[Any, Any]]:
    """Yield the reference mechanisms, and those that other distributions register.

    Raises:
        ImportError: with the name `PLUG_IN_GROUP`, if a plug-in cannot be imported, or has anything
            else than mechanisms.
    """
    for entry in (_REFERENCE, *entry_points(group=PLUG_IN_GROUP)):
        distribution = entry.dist.name if entry.dist else "blindtally"
        plug_in = f"the plug-in {entry.name} ({entry.value}) of {distribution}"
        try:
            loaded = entry.load()
        except Exception as error:
            raise _unusable(f"{plug_in} cannot be imported: {error}") from error
        for each in loaded if isinstance(loaded, tuple) else (loaded,):
            if not isinstance(each, SumMechanism | ReportMechanism):
                hint = ": call it, with ()" if isinstance(each, type) else ""
                raise _unusable(f"{plug_in} is not a mechanism, but {each!r}{hint}")
            needed = "name", "description", "question_type", "plan_type"
            if missing := [part for part in needed if not hasattr(each, part)]:
                raise _unusable(f"{plug_in} has no {' and no '.join(missing)}")
            for model in (each.question_type, each.plan_type):
                names = get_args(model.model_fields["mechanism"].annotation)
                if each.name not in names:
                    raise _unusable(
                        f"{plug_in} has the name {each.name!r}, and its {model.__name__} the "
                        f"mechanism {' or '.join(map(repr, names))}: these must be equal"
                    )
            yield each


def _unusable(fault: str) -> ImportError:
    return ImportError(f"{fault}; correct or uninstall it", name=PLUG_IN_GROUP)


def _by_name() -> dict[str, Mechanism[Any, Any]]:
    """Return all mechanisms by name; ImportError if two have the same."""
    mechanisms: dict[str, Mechanism[Any, Any]] = {}
    for each in (*_OWN_MECHANISMS, *_plugged_in()):
        if each.name in mechanisms:
            raise _unusable(f"a plug-in has the name of another mechanism, {each.name!r}")
        mechanisms[each.name] = each
    return mechanisms


MECHANISMS: Final = _by_name()
SUM_MECHANISMS: Final[dict[str, SumMechanism[Any, Any]]] = {
    name: each for name, each in MECHANISMS.items() if isinstance(each, SumMechanism)
}
REPORT_MECHANISMS: Final[dict[str, ReportMechanism[Any, Any, Any]]] = {
    name: each for name, each in MECHANISMS.items() if isinstance(each, ReportMechanism)
}

if TYPE_CHECKING:
    AnyQuestion: TypeAlias = Question
    AnyPlan: TypeAlias = Plan
else:
    _question_types = tuple(dict.fromkeys(each.question_type for each in MECHANISMS.values()))
    _plan_types = tuple(dict.fromkeys(each.plan_type for each in MECHANISMS.values()))
    AnyQuestion = Annotated[reduce(or_, _question_types), Field(discriminator="mechanism")]
    AnyPlan = Annotated[reduce(or_, _plan_types), Field(discriminator="mechanism")]

# A device has one plan at a time, and a command often none.
_DEFERRED = ConfigDict(defer_build=True)
_QUESTION_ADAPTER: TypeAdapter[AnyQuestion] = TypeAdapter(AnyQuestion, config=_DEFERRED)
_PLAN_ADAPTER: TypeAdapter[AnyPlan] = TypeAdapter(AnyPlan, config=_DEFERRED)


def parse_question(document: Mapping[str, Any]) -> AnyQuestion:
    """Return the question in a JSON `document`; ValidationError if it is invalid."""
    return _QUESTION_ADAPTER.validate_python(document)


def parse_plan(document: Mapping[str, Any]) -> AnyPlan:
    """Return the plan in a JSON `document`; ValidationError if it is invalid."""
    return _PLAN_ADAPTER.validate_python(document)


def read_plan(served: str | Plan) -> AnyPlan:
    """Return the plan whose canonical text (RFC 8785) is `served`, as devices receive it.

    Two readers of one text must agree on the plan, and on the digest of the text. So ValueError is
    raised if this version would write the plan otherwise: with another order of keys, `1.0` for
    `1`, or a key that occurs twice. ValidationError is raised if the plan is invalid.
    """
    if isinstance(served, Plan):
        return served
    plan = _PLAN_ADAPTER.validate_json(served)
    if plan.canonical_text() != served:
        raise ValueError("the plan's text is not in its canonical form (RFC 8785)")
    return plan


# A plan in the documents of the API, where it stands as its canonical text.
if TYPE_CHECKING:
    ServedPlan: TypeAlias = Plan
else:
    ServedPlan = Annotated[
        AnyPlan, BeforeValidator(read_plan), PlainSerializer(Plan.canonical_text, return_type=str)
    ]


def mechanism_of(asked: Question | Plan) -> Mechanism[Any, Any]:
    """Return the mechanism of a question or a plan."""
    return MECHANISMS[asked.mechanism]
