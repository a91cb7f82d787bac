"""Fields and small models that several resources share, with the rules that the API server checks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import NAME_PATTERN, PERCENT_PATTERN, Contract, DurationText, NameText, Rule, matching


def checked(*rules: Rule, **limits: Any) -> Any:
    """A pydantic Field whose value the API server checks with rules."""
    return Field(json_schema_extra={"x-kubernetes-validations": [rule.to_schema() for rule in rules]}, **limits)


def list_map(*keys: str, **limits: Any) -> Any:
    """A pydantic Field for a list of objects told apart by keys: no two alike, and server-side apply merges by key."""
    return Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}, **limits)


def list_set(**limits: Any) -> Any:
    """A pydantic Field for a list without duplicates."""
    return Field(json_schema_extra={"x-kubernetes-list-type": "set"}, **limits)


Text = Annotated[str, Field(max_length=1024)]
Percent = Annotated[str, matching(PERCENT_PATTERN, "a percentage from 0% to 100%", max_length=4)]
CountOrPercent = Annotated[int, Field(ge=0, le=100000)] | Percent
FreeObject = dict[str, Any]
"""An object that the API server keeps as it is (x-kubernetes-preserve-unknown-fields)."""

# ---- addresses ----

LOCAL_HOSTS = (
    r"([^/?#:]*[.])?(localhost|localdomain)[.]?",
    r"(127|0)([.][0-9]+)*",
    r"169[.]254([.][0-9]+)*",
    # metadata services by name, and by addresses outside the link-local range: Alibaba, Azure's wire server, Oracle; EC2 and Google over IPv6
    r"(metadata([.](google|azure)[.]internal)?|instance-data([.]ec2[.]internal)?)[.]?",
    r"100[.]100[.]100[.]200|168[.]63[.]129[.]16|192[.]0[.]0[.]192",
    r"\[fd00:ec2:[0:]*254\]|\[fd20:ce:[0:]*254\]",
    # loopback, unspecified, link-local and IPv4-mapped addresses of IPv6
    r"\[[0:]*1?\]|\[fe[89ab][^\]]*\]|\[[0:]*:ffff:[^\]]*\]",
    # 2130706433, 127.1, 0x7f.0.0.1 and 0177.0.0.1 are loopback too, for some resolvers
    r"([0-9]+[.]){0,2}[0-9]+[.]?|([^/?#:]*[.])?0x[0-9a-f]*([.](0x[0-9a-f]*|[0-9]+))*[.]?|([0-9]+[.])*0[0-9]+([.][0-9]+)*[.]?",
)
"""Hosts that a pod must not be sent to, as regular expressions. The CEL functions for addresses would be clearer, but their cost cannot be
bounded on a part of a text."""

_LOCAL_URL = f"^https?://({'|'.join(LOCAL_HOSTS)})(:[0-9]*)?([/?#]|$)"


def _unless_empty(rule: str) -> str:
    return f"self == '' || ({rule})"


def web_rules(schemes: str) -> tuple[Rule, ...]:
    """Rules for the parts of a URL that is https (or http, where `schemes` says so); URLs of other schemes pass."""
    is_url = f"!self.matches(r'^({schemes})://')"
    return (
        Rule(f"{is_url} || (isURL(self) && url(self).getHostname() != '')", "this is not a URL: write https://<host>/<path>"),
        Rule(
            "!self.matches(r'^[a-z0-9]+://[^/?#]*@')",
            "credentials do not belong into an address: put them into a Secret and name it in credentialsSecretRef",
        ),
        Rule(
            f"!self.lowerAscii().matches(r'{_LOCAL_URL}')",
            "loopback, link-local and metadata addresses are refused: write the host name of the server that holds the data",
        ),
    )


SOURCE_RULES = (
    Rule("!self.startsWith('file:')", "file:// works on the command line only: put it into a bucket and write s3://<bucket>/<path>"),
    Rule("self.matches(r'^((s3|https?)://|file:)')", "write s3://<bucket>/<path> or https://<host>/<path>"),
    Rule(
        "!self.startsWith('s3://') || self.matches(r'^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#]*)?$')",
        "write s3://<bucket>/<path>: a bucket's name has 3 to 63 lower-case letters, digits, '.' and '-'",
    ),
    Rule(
        r"!self.lowerAscii().matches(r'(/|%2f|\\)([.]|%2e){2}(/|%2f|\\|[?#]|$)')",
        "'..' would leave the folder: write the path without it",
    ),
    Rule(r"!self.matches(r'[\x00-\x20\x7f\\]')", "spaces, control characters and backslashes are not allowed: write %20 for a space"),
    *web_rules("https?"),
)
PLAIN_HTTP = Rule(
    "!has(self.uri) || !self.uri.startsWith('http://') || has(self.digest)",
    "http:// is not protected against change: write https:// or s3://, or the digest that the data must have",
    ".uri",
)
"""Of what has `uri` and `digest`."""
ENDPOINT_RULES = (
    Rule("self.matches(r'^https?://')", "write the S3 server's address as https://<host>[:<port>]"),
    Rule("!self.matches(r'^https?://[^/?#]*[/?#].')", "an endpoint has no path: write https://<host>[:<port>], and the prefix into uri"),
    *web_rules("https?"),
)


def _optional(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(Rule(_unless_empty(rule.rule), rule.message) for rule in rules)


Uri = Annotated[str, checked(*SOURCE_RULES, min_length=1, max_length=2048)]
OptionalUri = Annotated[str, checked(*_optional(SOURCE_RULES), max_length=2048)]
Endpoint = Annotated[str, checked(*_optional(ENDPOINT_RULES), max_length=1024)]

IMAGE_RULES = (
    Rule(
        "self.matches(r'^[^[:space:]]*$') && !self.contains('://')",
        "write an image as [<registry>/]<name>[:<tag>][@sha256:<64 hex digits>], without a scheme",
    ),
    Rule(
        "!self.contains('@') || self.matches(r'^[^@]+@sha256:[0-9a-f]{64}$')",
        "the image's digest is cut or wrong: write @sha256:<64 hex digits>",
    ),
)
Image = Annotated[str, checked(*IMAGE_RULES, min_length=1, max_length=512)]
OptionalImage = Annotated[str, checked(*IMAGE_RULES, max_length=512)]

CLASS_NAME_PATTERN = NAME_PATTERN.replace(".]", "]")
ClassName = Annotated[
    str,
    matching(
        CLASS_NAME_PATTERN, "the name of a HardwareClass: lower-case letters, digits and '-', at most 50", min_length=1, max_length=50
    ),
]


class LocalRef(Contract):
    """An object of the same namespace."""

    name: NameText
    """Name of the object."""


class LabelSelector(Contract):
    """Objects that carry all of these labels."""

    match_labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=16)] = Field(default_factory=dict)
    """Labels with their values; all of them must be there."""

    RULES = (
        # an unknown matchExpressions is pruned, and what is left would select everything
        Rule(
            "size(self.matchLabels) > 0",
            "this selects nothing: write at least one label below matchLabels (matchExpressions is not known here)",
        ),
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items())


Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


class Window(Contract):
    """When something may be done: on these days from `start` for `duration`, in the time of `timeZone`."""

    days: Annotated[list[Day], list_set(min_length=1, max_length=7)]
    """Days on which the window opens."""
    start: Annotated[str, matching(r"^([01][0-9]|2[0-3]):[0-5][0-9]$", 'the time in quotes, like "02:00"', max_length=5)]
    """When it opens, hh:mm."""
    duration: DurationText
    """How long it stays open, past midnight too."""
    time_zone: Annotated[str, matching(r"^[A-Za-z][A-Za-z0-9_+/-]*$", "an IANA name like Europe/Berlin, or UTC", max_length=64)] = "UTC"
    """IANA name of the time zone of `days` and `start`."""

    RULES = (Rule("self.duration.matches('[1-9]')", "a window of no length never opens: write a duration like 4h", ".duration"),)
