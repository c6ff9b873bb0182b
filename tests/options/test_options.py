"""Options as the user writes them: checked, typed, refused with a remedy that can be followed."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields, replace
from functools import partial

import pytest

from cdc.errors import BadOption, BadToken
from cdc.model import CaptureFilter, Selection
from cdc.options import OPTIONS, Option, parse
from cdc.pipeline.sections import SECTIONS

NEEDED = {"uri": "mongodb://localhost", "collections": "shop.orders"}


def refusal(**given: str) -> BadOption:
    with pytest.raises(BadOption) as caught:
        parse({**NEEDED, **{name.replace("_", "."): value for name, value in given.items()}})
    return caught.value


def test_what_is_not_given_has_its_declared_default() -> None:
    parsed = parse(NEEDED)
    assert {each.name for each in fields(parsed)} == {
        *(option.attribute for option in OPTIONS),
        *("selection", "capture"),
    }
    assert all(
        getattr(parsed, option.attribute) == option.default
        for option in OPTIONS
        if option.name not in NEEDED
    )


def test_declared_defaults_are_of_the_declared_type_and_among_the_choices() -> None:
    for option in OPTIONS:
        if option.default is not None:
            assert type(option.default) is option.kind, option.name
            assert not option.choices or option.default in option.choices, option.name
            assert option.least is None or option.default >= option.least, option.name


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_is_explained_in_whole_sentences(option: Option) -> None:
    says = option.description
    assert says.endswith(".")
    assert says[0].isupper()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("collection", "collections"),
        ("split.size", "split.size.mb"),
        ("documentformat", "document.format"),
        ("imags", "images"),
        ("snapshot.split.per.batch", "snapshot.splits.per.batch"),
        ("server.timeout", "server.timeout.ms"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_name(wrong: str, meant: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse({**NEEDED, wrong: "1"})
    assert wrong in caught.value.message
    assert caught.value.remedy == f"Did you mean '{meant}'?"


def test_an_option_like_no_other_is_refused_with_all_known_names() -> None:
    remedy = refusal(zzzzzzzz="1").remedy or ""
    assert all(option.name in remedy for option in OPTIONS)


def test_names_are_read_without_regard_to_case() -> None:
    assert parse({**NEEDED, "Split.Size.MB": "3"}).split_size_mb == 3


@pytest.mark.parametrize("missing", ["uri", "collections"])
def test_a_required_option_that_is_missing_is_named(missing: str) -> None:
    with pytest.raises(BadOption, match=f"'{missing}' is not set"):
        parse({name: value for name, value in NEEDED.items() if name != missing})


@pytest.mark.parametrize("value", ["", "many", "1.5", "0x10", "9" * 5000, "0", "-1"])
def test_a_number_that_is_none_or_too_small_is_refused(value: str) -> None:
    assert "'split.size.mb'" in refusal(split_size_mb=value).message


def test_the_least_number_is_accepted() -> None:
    assert parse({**NEEDED, "split.size.mb": "1"}).split_size_mb == 1
    assert parse({**NEEDED, "retry.seconds": "0"}).retry_seconds == 0


def test_a_truth_value_is_true_or_false_in_any_case_and_nothing_else() -> None:
    assert parse({**NEEDED, "emit.watermark": "TRUE"}).emit_watermark is True
    assert parse({**NEEDED, "emit.watermark": "false"}).emit_watermark is False
    for value in ("", "yes", "1"):
        assert "'emit.watermark'" in refusal(emit_watermark=value).message


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.choices], ids=lambda o: o.name)
def test_a_value_outside_of_the_choices_is_refused_with_all_of_them(option: Option) -> None:
    name, choices = option.name, option.choices
    with pytest.raises(BadOption) as caught:
        parse({**NEEDED, name: "sideways"})
    assert all(choice in (caught.value.remedy or "") for choice in choices)


def test_mode_timestamp_needs_a_start() -> None:
    assert "'start' is not set" in refusal(mode="timestamp").message
    parsed = parse({**NEEDED, "mode": "timestamp", "start": "5:1"})
    assert (parsed.mode, parsed.start) == ("timestamp", "5:1")


def test_a_window_needs_its_beginning() -> None:
    assert "'from' is not" in refusal(to="5:1").message


@pytest.mark.parametrize(
    ("match", "says"),
    [
        ("", "Extended JSON"),
        ("region = 'EU'", "Extended JSON"),
        *[
            (f'{{"a": {{{malformed}}}}}', "Extended JSON")
            for malformed in (
                '"$oid": "x"',
                '"$numberDecimal": "abc"',
                '"$date": {"$numberLong": "99999999999999999999"}',
                '"$timestamp": {"t": -1, "i": 0}',
            )
        ],
        ("{}", "not a match"),
        ("[1]", "not a match"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": {"b": 1, "b": 2}}', "twice"),
        ('{"$where": "1"}', "$where"),
        ('{"$text": {"$search": "a"}}', "$text"),
        ('{"a": {"$elemMatch": {"b": 1}}}', "$elemMatch"),
        ('{"a": {"$gt": 1, "b": 2}}', "mixes"),
        ('{"a": {"$gt": null}}', "$gt"),
        ('{"a": {"$lt": {"$numberDouble": "NaN"}}}', "$lt"),
        ('{"a": {"$lt": {"$numberDecimal": "NaN"}}}', "$lt"),
        ('{"a": {"$in": 1}}', "$in"),
        ('{"a": {"$not": 1}}', "$not"),
        ('{"a": {"$regex": 1}}', "$regex"),
        ('{"a": {"$regex": "a", "$options": "g"}}', "$regex"),
        ('{"a": {"$in": [{"$regex": "a"}]}}', "$regex"),
        ('{"a": {"$regularExpression": {"pattern": "a", "options": ""}}}', "$regex"),
        ('{"a.0": 1}', "position in an array"),
        ('{"a..b": 1}', "path"),
        ('{"a.$b": 1}', "path"),
        ('{"$or": []}', "$or"),
        ('{"$and": {"a": 1}}', "$and"),
        ('{"$expr": {"$gt": ["$a", "$$NOW"]}}', "$$NOW"),
        ('{"$expr": {"$eq": ["$$ROOT.a", 1]}}', "$$ROOT"),
        ('{"$expr": {"$lt": [{"$rand": {}}, 0.5]}}', "$rand"),
        ('{"a": 99999999999999999999}', "BSON"),
    ],
)
def test_a_filter_that_means_nothing_or_another_thing_each_time_is_refused(
    match: str, says: str
) -> None:
    refused = refusal(filter=match)
    assert "'filter'" in refused.message
    assert says in f"{refused.message} {refused.remedy}"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("", "must list"),
        (" , ", "must list"),
        ("a, -b", "must list"),
        ("-_id", "_id"),
        ("_id.a", "path"),
        ("a, a", "part of"),
        ("a, a.b", "part of"),
        ("-a.b, -a.b.c", "part of"),
        ("a..b", "path"),
        ("$a", "path"),
        ("a.0.b", "position in an array"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: str, says: str) -> None:
    refused = refusal(fields=fields)
    assert "'fields'" in refused.message
    assert says in refused.message


def test_fields_are_paths_beside_the_id() -> None:
    assert CaptureFilter.from_options(None, "_id, a , b.c").fields == (("a",), ("b", "c"))
    assert CaptureFilter.from_options(None, "-a.b").excludes
    assert CaptureFilter.from_options(None, "_id").fields == (("_id",),)


def test_collections_filter_and_fields_are_parsed_once_and_with_what_replaces_them() -> None:
    options = parse({**NEEDED, "filter": '{"region": "EU"}', "fields": "-ssn"})
    assert options.selection == Selection.parse("shop.orders")
    assert options.capture == CaptureFilter.from_options('{"region": "EU"}', "-ssn")
    assert options.selection is options.selection
    other = replace(options, collections="shop.others", fields=None)
    assert other.selection == Selection.parse("shop.others")
    assert other.capture == CaptureFilter.from_options('{"region": "EU"}', None)
    with pytest.raises(BadOption, match="'start' is set"):
        replace(options, start="5:1")


@pytest.mark.parametrize(
    "value",
    [
        '"EU"',
        '{"$regex": "^a", "$options": "i"}',
        '{"$date": "2024-01-01T00:00:00Z"}',
        '{"$oid": "64b7f0f5f0f5f0f5f0f5f0f5"}',
        '{"$numberDecimal": "1.50"}',
        '{"$binary": {"base64": "AAAA", "subType": "04"}}',
        '{"$timestamp": {"t": 1, "i": 2}}',
        '{"$minKey": 1}',
    ],
)
def test_options_reach_a_task_of_spark_as_they_are(value: str) -> None:
    given = {"uri": "mongodb://u:p@host", "collections": r"shop\..*", "max.cursors": "4"}
    options = parse({**given, "filter": f'{{"a": {value}}}', "fields": "a, b.c"})
    sent = pickle.loads(pickle.dumps(options))
    assert sent == options
    assert sent.uri == "mongodb://u:p@host"
    assert (sent.selection, sent.capture) == (options.selection, options.capture)


def test_mode_token_needs_a_token() -> None:
    assert "'start' is not set" in refusal(mode="token").message
    for start in ("", "5:1", "zz", "82", '{"_id": 1}', "{", "[]"):
        with pytest.raises(BadToken):
            parse({**NEEDED, "mode": "token", "start": start})


@pytest.mark.parametrize("mode", ["initial", "snapshot", "latest", "earliest"])
def test_a_start_contradicts_every_other_mode(mode: str) -> None:
    assert "'start' is set" in refusal(mode=mode, start="5:1").message


def test_a_start_contradicts_the_mode_that_is_the_default() -> None:
    assert "'start' is set" in refusal(start="5:1").message


def test_the_repr_of_options_holds_no_credentials() -> None:
    options = parse({**NEEDED, "uri": "mongodb://user:s3cret@host"})
    shown = f"{options!r} {options} {partial(print, options)!r} {[options]}"
    assert "retry_seconds=120" in shown
    assert "s3cret" not in shown
    assert "user" not in shown


def test_no_message_or_remedy_repeats_the_connection_string() -> None:
    secret = "mongodb://user:s3cret@host"
    for more in ({"uri": secret, "mode": "sideways"}, {"uri": secret, "unknown": "1"}):
        with pytest.raises(BadOption) as caught:
            parse({**NEEDED, **more})
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("retry.seconds", "5m", 300),
        ("retry.seconds", "30s", 30),
        ("retry.seconds", "0s", 0),
        ("retry.seconds", "2000ms", 2),
        ("retry.seconds", "120", 120),
        ("heartbeat.interval", "1h", 3600),
        ("heartbeat.interval", "1d", 86400),
        ("server.timeout.ms", "5s", 5000),
        ("server.timeout.ms", "250ms", 250),
    ],
)
def test_a_duration_has_a_unit_or_is_a_number(name: str, value: str, number: int) -> None:
    parsed = parse({**NEEDED, name: value})
    assert getattr(parsed, name.replace(".", "_")) == number


@pytest.mark.parametrize(
    "value", ["1500ms", "5 minutes", "m", "-5s", "1.5m", "5S", "", "9" * 99 + "s"]
)
def test_a_duration_that_is_none_is_refused_with_an_example(value: str) -> None:
    refused = refusal(retry_seconds=value)
    assert "'retry.seconds'" in refused.message
    assert "30s" in (refused.remedy or "")


def test_only_durations_have_units() -> None:
    assert "'split.size.mb'" in refusal(split_size_mb="5m").message


def test_an_option_has_the_names_that_other_sources_of_spark_use() -> None:
    given = {"connection.uri": "mongodb://h", "collections": "a.b", "maxEventsPerTrigger": "7"}
    parsed = parse(given)
    assert (parsed.uri, parsed.max_events_per_batch) == ("mongodb://h", 7)
    with pytest.raises(BadOption, match=r"'connection\.uri' and 'uri' are the same option"):
        parse({**NEEDED, "connection.uri": "mongodb://h"})


_TOKEN = "8269569B800000000A2B0229296E04"


@pytest.mark.parametrize(
    ("position", "mode", "start"),
    [
        ("earliest", "earliest", None),
        ("latest", "latest", None),
        ("2026-01-31T12:00:00Z", "timestamp", "2026-01-31T12:00:00Z"),
        ("1769860800:7", "timestamp", "1769860800:7"),
        (_TOKEN, "token", _TOKEN),
    ],
)
def test_a_starting_position_is_a_mode_a_time_or_a_token(
    position: str, mode: str, start: str | None
) -> None:
    parsed = parse({**NEEDED, "startingPosition": position})
    assert (parsed.mode, parsed.start) == (mode, start)


def test_a_starting_position_that_is_none_of_these_is_refused() -> None:
    for position in ("timestamp", "token", "tomorrow", ""):
        with pytest.raises(BadToken):
            parse({**NEEDED, "startingPosition": position})
    for name, value in (("mode", "latest"), ("start", "5:1")):
        refused = refusal(startingPosition="latest", **{name: value})
        assert refused.message == f"Options 'startingPosition' and '{name}' exclude each other."


def test_all_options_are_spelled_with_dots() -> None:
    for names in SECTIONS.values():
        assert all(re.fullmatch(r"[a-z]+(\.[a-z]+)*", name) for name in names)
