"""What callers write: one list alone, weights in place of options, and wrong types, through both clients."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
from collections.abc import AsyncIterator

import pytest

from rescorer import (
    Calibration,
    ConfigError,
    FormatError,
    Hypothesis,
    InputError,
    InvalidList,
    NBestList,
    Phrase,
    RescoreOptions,
    Utterance,
    Weights,
)
from rescorer.client import AsyncClient, Client, ConnectionOptions
from rescorer.errors import ModelNotFound
from tests.support.clients import make_list

HYPOTHESES = (Hypothesis("a"),)
STREAM_ONLY = Weights("acoustic", {"acoustic": 1.0}, {})


class BothClients:
    """Calls methods of both clients and asserts that they do the same."""

    def __init__(self, target: str, **options) -> None:
        self._target, self._options = target, options

    def __getattr__(self, method: str):
        def call(*arguments, **options):
            outcomes = [
                self._call(method, *arguments, **options),
                self._call_async(method, *arguments, **options),
            ]
            (error, answers), (other_error, other_answers) = outcomes
            assert (type(error), str(error)) == (type(other_error), str(other_error))
            if error is not None:
                raise error
            assert list(map(repr, answers)) == list(map(repr, other_answers))
            return answers

        return call

    def _call(self, method: str, *arguments, **options):
        try:
            with Client(self._target, **self._options) as client:
                return None, list(getattr(client, method)(*arguments, **options))
        except Exception as error:
            return error, []

    def _call_async(self, method: str, *arguments, **options):
        async def call() -> list:
            async with AsyncClient(self._target, **self._options) as client:
                answers = getattr(client, method)(*arguments, **options)
                if isinstance(answers, AsyncIterator):
                    return [answer async for answer in answers]
                return await answers

        try:
            return None, asyncio.run(call())
        except Exception as error:
            return error, []


@pytest.fixture
def offline():
    """Both clients, of a server that is never reached."""
    return BothClients("127.0.0.1:1")


@pytest.fixture
def both(server, client):
    """Both clients of the server."""
    return BothClients(server.target)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (None, "lists are of type NoneType; expected an NBestList, or a sequence of them"),
        ("lists.jsonl", "lists are of type str"),
        ({"id": "u1"}, "lists are of type dict"),
        (3, "lists are of type int"),
        ([{"id": "u1"}], r"lists\[0\] is of type dict; expected an NBestList"),
        ([make_list(), None], r"lists\[1\] is of type NoneType"),
        (["the cat"], r"lists\[0\] is of type str; .*hypotheses belong into a list"),
        (HYPOTHESES, r"lists\[0\] is of type Hypothesis; .*hypotheses belong into a list"),
        ([ConfigError("not of a list")], r"lists\[0\] is of type ConfigError"),
    ],
)
def test_refuses_what_is_not_a_list(offline, lists, message):
    for method in ("rescore", "rescore_each", "rescore_stream"):
        with pytest.raises(TypeError, match=message):
            getattr(offline, method)(lists)


@pytest.mark.parametrize("weights", [Weights("default"), {"name": "default"}])
def test_refuses_a_name_of_weights_as_weights(both, weights):
    with pytest.raises((ConfigError, InputError), match=r"has only a name; did you mean .*weights=.default"):
        both.rescore([make_list()], weights=weights)
    (answer,) = both.rescore([make_list()], weights=Weights("mine"))
    assert "acoustic" in answer.hypotheses[0].components


@pytest.mark.parametrize(
    ("options", "error_type", "message"),
    [
        ({"options": 0.5}, TypeError, "weights is of type float; expected Weights"),
        ({"options": [1.0]}, TypeError, "weights is of type list"),
        ({"options": {"acustic": 1.0}}, ConfigError, "unknown weight settings"),
        ({"options": {3: 1.0}}, ConfigError, "unknown weight settings"),
        (
            {"options": Weights(streams={"acoustic": "1"})},
            ConfigError,
            r'weights.streams\["acoustic"\] is \'1\'',
        ),
        ({"options": Weights(lm=9.5)}, ConfigError, "weights.lm is 9.5"),
        ({"options": Weights(decision="maximum")}, ConfigError, "weights.decision is 'maximum'"),
        ({"options": Weights(calibration=Calibration(3))}, InputError, "weights cannot be sent"),
        ({"options": "\ud800"}, InputError, "the options cannot be sent"),
        ({"weights": 3}, TypeError, "weights is of type int"),
        ({"options": STREAM_ONLY, "weights": "default"}, TypeError, "weights were given twice"),
        ({"decision": "minimum_bayes"}, ConfigError, "did you mean 'minimum_bayes_risk'"),
        ({"merge": "yes"}, TypeError, "merge is of type str; expected True or False"),
        ({"phrases": "Ada"}, TypeError, "phrases is of type str; expected a sequence"),
        ({"phrases": [None]}, TypeError, r"phrases\[0\] is of type NoneType"),
        ({"phrases": [Phrase(None)]}, TypeError, r"phrases\[0\].text: expected a string"),
        ({"phrases": [Phrase("\ud800")]}, InputError, "phrases cannot be sent"),
        ({"phrase_lists": "names"}, TypeError, "phrase_lists is of type str"),
        ({"model": None}, TypeError, "model is of type NoneType"),
        ({"marge": True}, TypeError, "'marge' is not an option of rescoring.*did you mean 'merge'"),
        ({"fallback": "anything"}, ConfigError, "fallback: expected one of '', 'ngram', 'first_pass'"),
        ({"fallback": ["ngram"]}, ConfigError, "fallback: expected one of"),
        ({"timeout_s": "30"}, TypeError, "timeout_s is of type str; expected a number or None"),
        ({"timeout_s": float("nan")}, ConfigError, "timeout_s is nan"),
    ],
)
def test_refuses_wrong_options(offline, options, error_type, message):
    for method in ("rescore", "rescore_each", "rescore_stream"):
        with pytest.raises(error_type, match=message):
            getattr(offline, method)([make_list()], **options)


@pytest.mark.parametrize(
    ("nbest", "message"),
    [
        (NBestList(7, HYPOTHESES), "list '7', id: expected a string, got int"),
        (NBestList("u", None), "hypotheses: expected a tuple of Hypothesis objects, got NoneType"),
        (NBestList("u", HYPOTHESES[0]), "hypotheses: expected a tuple of Hypothesis objects, got Hypothesis"),
        (NBestList("u", ("a",)), r"hypothesis 0: expected a Hypothesis, got str; write Hypothesis\('a'\)"),
        (
            NBestList("u", (*HYPOTHESES, Hypothesis(None))),
            "hypothesis 1, text: expected a string, got NoneType",
        ),
        (NBestList("u", (Hypothesis(b"a"),)), "text: expected a string, got bytes"),
        (NBestList("u", (Hypothesis("a", partial="no"),)), "partial: expected True or False, got str"),
        (NBestList("u", (Hypothesis("\ud800"),)), "cannot be sent: .*surrogates"),
        (NBestList("u", HYPOTHESES, [-1.0]), "streams: expected scores by the name of the stream, got list"),
        (NBestList("u", HYPOTHESES, {"am": "-1.0"}), r'streams\["am"\]: expected a tuple with one number'),
        (NBestList("u", HYPOTHESES, {"am": -1.0}), r'streams\["am"\]: expected a tuple .*, got float'),
        (NBestList("u", HYPOTHESES, {"am": {0: -1.0}}), r'streams\["am"\]: expected a tuple .*, got dict'),
        (NBestList("u", HYPOTHESES, {"am": ("-1.0",)}), r'hypothesis 0, streams\["am"\]: .* number, got str'),
        (NBestList("u", HYPOTHESES, {"am": (None,)}), r'streams\["am"\]: expected a number, got NoneType'),
        (NBestList("u", HYPOTHESES, {"am": (10**400,)}), "cannot be sent: int too large"),
        (NBestList("u", HYPOTHESES, {1: (-1.0,)}), "streams: expected a string as the name of a stream"),
        (NBestList("u", HYPOTHESES, context=None), "context: expected a string, got NoneType"),
        (NBestList("u", HYPOTHESES, previous=("hello",)), r"previous\[0\]: expected an Utterance, got str"),
        (
            NBestList("u", HYPOTHESES, previous=(Utterance("a", 3),)),
            r"previous\[0\].speaker: expected a string",
        ),
        (NBestList("u", HYPOTHESES, previous=None), "previous: expected a tuple of Utterance objects"),
        (NBestList("u", HYPOTHESES, phrases=("Ada",)), r"phrases\[0\]: expected a Phrase, got str"),
        (
            NBestList("u", HYPOTHESES, phrases=(Phrase("Ada", "2"),)),
            r"phrases\[0\].weight: expected a number",
        ),
        (
            NBestList("u", HYPOTHESES, phrases=(Phrase("Ada", spellings="Ida"),)),
            r"phrases\[0\].spellings: expected a tuple of strings, got str",
        ),
    ],
)
@pytest.mark.slow
def test_list_with_a_wrong_type_inside_is_an_error_of_the_list(both, nbest, message):
    with pytest.raises(InvalidList, match=message):
        both.rescore([make_list("good"), nbest])
    for method in (both.rescore_each, both.rescore_stream):
        error, answer = method([nbest, make_list("good")])
        assert isinstance(error, InvalidList)
        assert answer.id == "good"


@pytest.mark.parametrize(
    ("arguments", "error_type", "message"),
    [
        ((None,), TypeError, "texts is of type NoneType; expected a string or several"),
        ((["the", None],), TypeError, r"texts\[1\] is of type NoneType; expected a string"),
        (([b"the"],), TypeError, r"texts\[0\] is of type bytes"),
        (("the", None), TypeError, "context is of type NoneType; expected a string"),
        (("the", ["a"]), TypeError, "context is of type list; expected a string"),
        (("the", "", 3), TypeError, "weights is of type int"),
        (("the", "", {"mixture": {"ngram": "all"}}), ConfigError, r'weights.mixture\["ngram"\] is \'all\''),
        (("\ud800",), InputError, "texts cannot be sent"),
    ],
)
def test_refuses_wrong_texts(offline, arguments, error_type, message):
    with pytest.raises(error_type, match=message):
        offline.score_text(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error_type", "message"),
    [
        ({"target": None}, TypeError, "target is of type NoneType; expected HOST:PORT"),
        ({"model": None}, TypeError, "model is of type NoneType"),
        ({"tls": True}, TypeError, r"tls is of type bool; expected Tls\(…\) or None"),
        ({"token": b"secret"}, TypeError, "token is of type bytes"),
        ({"retry": 3}, TypeError, "retry is of type int; expected Retry"),
        ({"in_flight": "4"}, TypeError, "in_flight is of type str; expected a number"),
        ({"connections": 0}, ConfigError, "connections: expected at least 1, got 0"),
        ({"tokn": "a"}, TypeError, "'tokn' is not an option of a client.*did you mean 'token'"),
    ],
)
def test_refuses_wrong_options_of_clients(arguments, error_type, message):
    with pytest.raises(error_type, match=message):
        Client(**{"target": "127.0.0.1:1", **arguments})

    async def connect() -> None:
        AsyncClient(**{"target": "127.0.0.1:1", **arguments})

    with pytest.raises(error_type, match=message):
        asyncio.run(connect())


def test_options_of_a_connection_do_not_show_the_token():
    assert "secret" not in repr(ConnectionOptions(token="secret"))


def test_both_clients_have_the_same_methods():
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_"):
            parameters = inspect.signature(method).parameters
            assert inspect.signature(getattr(AsyncClient, name)).parameters == parameters, name
            assert len(parameters) < 8


@pytest.mark.slow
def test_takes_weights_in_place_of_options(both, tmp_path):
    lists = [make_list("u1", "the mat", "the cat")]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"name": "acoustic", "streams": {"acoustic": 1.0}, "lm": {}}))
    expected = both.rescore(lists, STREAM_ONLY)
    assert expected[0].best.total == -1.0
    for options in (path, json.loads(path.read_text()), RescoreOptions(STREAM_ONLY)):
        assert both.rescore(lists, options) == expected
    assert both.rescore(lists, weights=STREAM_ONLY) == expected
    assert both.rescore(lists, "default") == both.rescore(lists) != expected
    merged = RescoreOptions(STREAM_ONLY, merge=True)
    assert both.rescore(lists, merged)[0].best.merged_ranks == (0,)
    assert both.rescore(lists, merged, merge=False) == expected


@pytest.mark.slow
def test_takes_one_list_alone_and_generators(both, client):
    nbest, read_error = make_list("u1"), FormatError("not JSON", file="lists.jsonl", line=3)
    for method in (both.rescore, both.rescore_each, both.rescore_stream):
        assert [answer.id for answer in method(nbest)] == ["u1"]
        assert method([]) == []
    assert [answer.id for answer in client.rescore(make_list(f"u{i}") for i in range(3))] == [
        "u0",
        "u1",
        "u2",
    ]
    assert both.rescore_each(read_error) == [read_error]
    assert both.rescore_stream([read_error, nbest])[0] is read_error
    with pytest.raises(FormatError, match=r"lists\.jsonl:3: not JSON"):
        both.rescore([nbest, read_error])


@pytest.mark.slow
def test_scores_one_text_alone_with_weights_by_name_or_value(both):
    (score,) = both.score_text("the cat")
    assert score.words == ("the", "cat")
    assert both.score_text(["the cat"], weights="default") == [score]
    mixture = {"ngram": 1.0, "neural": 0.0}
    (ngram,) = both.score_text("the cat", weights={"mixture": mixture})
    assert ngram.log_probs["mixture"] == pytest.approx(score.log_probs["ngram"])
    assert both.score_text("the cat", weights=RescoreOptions(Weights(mixture=mixture))) == [ngram]


@pytest.mark.slow
def test_model_of_the_options_wins_over_that_of_the_client(server, client):
    mistaken = BothClients(server.target, model="other")
    for method in (mistaken.rescore, mistaken.rescore_each, mistaken.rescore_stream):
        assert method(make_list(), model="tiny/1")[0].model == "tiny/1"
        with pytest.raises(ModelNotFound, match="other"):
            method(make_list())
    options = RescoreOptions(model="tiny/1")
    assert mistaken.score_text("the cat", weights=options) == BothClients(server.target).score_text("the cat")


def test_clients_say_why_they_cannot_be_copied_to_other_processes():
    with Client("127.0.0.1:1") as client, pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(client)


def test_async_client_belongs_to_the_loop_in_which_it_is_created():
    with pytest.raises(ConfigError, match="no event loop is running"):
        AsyncClient("127.0.0.1:1")

    async def create() -> AsyncClient:
        return AsyncClient("127.0.0.1:1")

    client = asyncio.run(create())
    for call in (client.list_models, client.wait_ready, lambda: client.rescore(make_list("u"))):
        with pytest.raises(ConfigError, match="belongs to another event loop"):
            asyncio.run(call())
