"""The torch engine against plain transformers: batching, cache, swaps, ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from pipeline.engines.base import EngineState, Generation, TokenArray
from pipeline.engines.cohort import pad_left
from pipeline.engines.endings import eos_token_ids, find_stop
from pipeline.engines.limits import split_prefill
from pipeline.engines.model_dir import load_model, load_tokenizer, named_state
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.tiny import make_tiny_model
from pipeline.engines.torch_engine import TorchEngine, open_torch_engine
from schemas.errors import EngineError, RecordInvalid
from schemas.records import Message, PromptGroup, SamplingParams, Version
from tests.unit.pipeline.engines.requests import assert_same, prompts, request, run, sharpen, varied

V1, V2 = Version(lineage=1, step=1), Version(lineage=1, step=2)
EOS = 2


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(path, seed=0)
    return path


@pytest.fixture
def engine(model_dir: Path) -> TorchEngine:
    return open_torch_engine(TorchEngineSettings(model_dir=model_dir), version=V1)


@pytest.fixture
def model(model_dir: Path) -> PreTrainedModel:
    """The same weights as the engine's, in a model of its own."""
    return load_model(model_dir, device="cpu", dtype="float32")


def test_a_sequence_is_the_same_alone_in_a_batch_and_joining_late(engine: TorchEngine, model: PreTrainedModel) -> None:
    engine.load(V2, sharpen(named_state(model)[0], seed=1))
    requests = varied(40)
    together = run(engine, requests)
    staggered: dict[str, Generation] = {}
    for at in range(0, 40, 7):
        engine.submit(requests[at : at + 7])
        staggered.update({g.request_id: g for g in engine.step()})
    while engine.num_running:
        staggered.update({g.request_id: g for g in engine.step()})
    for each in requests:
        assert_same(together[each.request_id], staggered[each.request_id])
        assert_same(together[each.request_id], run(engine, [each])[each.request_id])
    assert len({tuple(g.tokens.tolist()) for g in together.values()}) > 30


def test_members_of_a_group_share_a_prefill_and_differ_by_seed(engine: TorchEngine) -> None:
    prompt = (5, 6, 7, 8)
    group = [request(f"m{m}", prompt, seed=m) for m in range(16)]
    other = [request("other", (9, 9), seed=3)]
    together = run(engine, [*group, *other])
    for each in [*group, *other]:
        assert_same(together[each.request_id], run(engine, [each])[each.request_id])
    assert len({tuple(g.tokens.tolist()) for g in together.values()}) > 12


def test_greedy_equals_generate_of_transformers(engine: TorchEngine, model: PreTrainedModel) -> None:
    state = sharpen(named_state(model)[0], seed=2)
    engine.load(V2, state)
    load_into(model, state)
    requests = [request(f"r{i}", p, temperature=0.0, max_tokens=10) for i, p in enumerate(prompts(num=12))]
    done = run(engine, requests)
    for each in requests:
        ids = torch.tensor([each.prompt_tokens])
        expected = model.generate(  # type: ignore[operator]
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=10
        )
        assert done[each.request_id].tokens.tolist() == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_logprobs_equal_teacher_forcing(engine: TorchEngine, model: PreTrainedModel, temperature: float) -> None:
    requests = [request(f"r{i}", p, seed=i, temperature=temperature) for i, p in enumerate(prompts(num=9))]
    done = run(engine, requests)
    for each in requests:
        got = done[each.request_id]
        ids = torch.tensor([[*each.prompt_tokens, *got.tokens.tolist()]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(each.prompt_tokens) - 1 : -1]
        expected = torch.log_softmax(logits / (temperature if temperature else 1.0), dim=-1)
        chosen = expected.gather(1, torch.from_numpy(got.tokens).long().unsqueeze(1)).squeeze(1)
        np.testing.assert_allclose(got.logprobs, chosen.numpy(), atol=1e-4)


def load_into(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    own, _ = named_state(model)
    for name, tensor in state.items():
        own[name].copy_(tensor)


def test_requests_in_flight_keep_their_cache_across_a_swap(engine: TorchEngine, model: PreTrainedModel) -> None:
    old, new = (sharpen(named_state(model)[0], seed=seed) for seed in (3, 4))
    requests = [request(f"r{i}", p, temperature=0.0, max_tokens=6) for i, p in enumerate(prompts(num=12))]
    engine.load(V1, old)
    engine.submit(requests)
    done = [*engine.step(), *engine.step()]
    engine.load(V2, new)
    done += [g for _ in range(4) for g in engine.step()]
    got = {g.request_id: g for g in done}
    spans = [[(r.num_tokens, r.version) for r in g.version_runs] for g in got.values()]
    assert spans.count([(2, V1), (4, V2)]) > 4
    for each in requests:
        tokens = got[each.request_id].tokens.tolist()
        assert (
            tokens
            == greedy_across_swap(model, each.prompt_tokens, states=(old, old, new, new, new, new))[: len(tokens)]
        )


def greedy_across_swap(
    model: PreTrainedModel, prompt: TokenArray | tuple[int, ...], *, states: Sequence[dict[str, torch.Tensor]]
) -> list[int]:
    """One token per state, by plain transformers with one cache."""
    cache = DynamicCache(config=model.config)
    tokens: list[int] = []
    inputs = torch.tensor([prompt])
    for state in states:
        load_into(model, state)
        with torch.no_grad():
            logits = model(input_ids=inputs, past_key_values=cache, use_cache=True).logits[0, -1]
        tokens.append(int(logits.argmax()))
        inputs = torch.tensor([tokens[-1:]])
    return tokens


def test_after_a_swap_new_requests_equal_a_fresh_engine(
    engine: TorchEngine, model: PreTrainedModel, model_dir: Path
) -> None:
    state = sharpen(named_state(model)[0], seed=5)
    requests = varied(10)
    run(engine, requests)
    engine.load(V2, state)
    fresh = open_torch_engine(TorchEngineSettings(model_dir=model_dir))
    fresh.load(V2, state)
    swapped, expected = run(engine, requests), run(fresh, requests)
    for name, generation in expected.items():
        assert_same(swapped[name], generation)


def test_an_end_token_ends_a_sequence_and_stays_in_its_tokens(engine: TorchEngine) -> None:
    requests = [request(f"r{i}", (5,), seed=i, max_tokens=40) for i in range(64)]
    done = run(engine, requests).values()
    stopped = [g for g in done if g.finish_reason == "stop"]
    assert len(stopped) > 10
    for generation in done:
        at_end = generation.tokens[-1] == EOS
        assert at_end == (generation.finish_reason == "stop")
        assert EOS not in generation.tokens[:-1]
        assert "<eos>" not in generation.text
        assert len(generation.tokens) == 40 or at_end


def test_every_end_token_of_the_configs_counts(model: PreTrainedModel, model_dir: Path) -> None:
    tokenizer: PreTrainedTokenizerBase = load_tokenizer(model_dir)
    assert model.generation_config is not None
    model.generation_config.eos_token_id = [7, 8]
    assert eos_token_ids(model, tokenizer) == {EOS, 7, 8}
    settings = TorchEngineSettings(model_dir=model_dir)
    done = run(
        TorchEngine(model, tokenizer, settings=settings, version=V1),
        [request(f"r{i}", (5,), seed=i, max_tokens=40) for i in range(32)],
    )
    assert {int(g.tokens[-1]) for g in done.values() if g.finish_reason == "stop"} == {EOS, 7, 8}


def test_a_stop_string_leaves_the_text_and_stays_in_the_tokens(engine: TorchEngine, model_dir: Path) -> None:
    tokenizer = load_tokenizer(model_dir)
    free = run(engine, [request(f"r{i}", (5,), seed=i, max_tokens=40) for i in range(32)])
    # A stop string of three characters that each sequence is known to produce, and one that none does.
    stops = {name: (whole.text[4:7], "(((((") for name, whole in free.items() if len(whole.text) > 8}
    assert len(stops) > 10
    cut = run(engine, [request(n, (5,), seed=int(n[1:]), max_tokens=40, stop=stop) for n, stop in stops.items()])
    for name, got in cut.items():
        whole = free[name]
        at = find_stop(whole.text, stops[name])
        assert at is not None
        assert got.finish_reason == "stop"
        assert got.text == whole.text[:at]
        assert got.tokens.tolist() == whole.tokens.tolist()[: len(got.tokens)]
        # Not one token was made after the stop string was complete.
        assert str(tokenizer.decode(got.tokens.tolist(), skip_special_tokens=True)) == whole.text[: at + 3]


def test_rows_that_ended_early_do_not_disturb_the_rest(engine: TorchEngine) -> None:
    requests = [request(f"r{i}", p, seed=i, max_tokens=1 + 3 * (i % 9)) for i, p in enumerate(prompts(num=27))]
    together = run(engine, requests)
    for each in requests:
        assert_same(together[each.request_id], run(engine, [each])[each.request_id])


def test_a_full_context_is_used_to_its_last_token(engine: TorchEngine) -> None:
    long = (5, 6) * 31
    done = run(engine, [request("long", long, max_tokens=40), request("short", (5,), max_tokens=63)])
    assert len(done["long"].tokens) == 2 or done["long"].finish_reason == "stop"
    assert engine.context_tokens == 64


def test_chats_are_rendered_with_the_template(engine: TorchEngine) -> None:
    encoded = engine.encode_prompt(group(messages=(Message(role="user", content="1 + 2 ="),)))
    assert encoded.text == "1 + 2 =\n"
    assert len(encoded.tokens) == 8
    with pytest.raises(RecordInvalid, match="no messages"):
        engine.encode_prompt(group(messages=()))
    with pytest.raises(RecordInvalid, match="token id 32; allowed are 0 to 31"):
        engine.encode_prompt(group(token_ids=np.array([32], dtype="<i4").tobytes()))


def test_a_missing_or_failing_template_is_a_bad_prompt(model: PreTrainedModel, model_dir: Path) -> None:
    tokenizer = load_tokenizer(model_dir)
    engine = TorchEngine(model, tokenizer, settings=TorchEngineSettings(model_dir=model_dir), version=V1)
    chat = group(messages=(Message(role="user", content="1"),))
    tokenizer.chat_template = "{{ raise_exception('system turn needed') }}"
    with pytest.raises(RecordInvalid, match="system turn needed"):
        engine.encode_prompt(chat)
    tokenizer.chat_template = None
    with pytest.raises(RecordInvalid, match="no chat template"):
        engine.encode_prompt(chat)


def group(*, messages: tuple[Message, ...] | None = None, token_ids: bytes | None = None) -> PromptGroup:
    return PromptGroup(
        run="r",
        group=1,
        group_size=1,
        messages=messages,
        token_ids=token_ids,
        sampling=SamplingParams(),
        seed=0,
        source="test",
        source_index=0,
        epoch=0,
        created_unix_ms=0,
    )


def test_tied_names_may_be_given_when_they_agree(engine: TorchEngine, model: PreTrainedModel) -> None:
    own, ties = named_state(model)
    ((alias, owner),) = ties.items()
    engine.load(V2, {**own, alias: own[owner].clone()})
    assert engine.version == V2
    with pytest.raises(EngineError, match=f"{alias} is tied to {owner}"):
        engine.load(V1, {**own, alias: own[owner] + 1})
    assert engine.version == V2


def test_weights_that_are_not_finite_give_nan_logprobs_and_no_crash(
    engine: TorchEngine, model: PreTrainedModel
) -> None:
    own, _ = named_state(model)
    broken = {**own, "model.norm.weight": torch.full_like(own["model.norm.weight"], math.nan)}
    engine.load(V2, broken)
    done = run(engine, [request("r", (5,), max_tokens=3), request("greedy", (5,), temperature=0.0, max_tokens=3)])
    assert all(np.isnan(g.logprobs).all() for g in done.values())


def test_a_failure_inside_the_model_quarantines_until_a_whole_load(
    engine_with_model: tuple[TorchEngine, PreTrainedModel],
) -> None:
    engine, model = engine_with_model

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    hook = model.register_forward_pre_hook(fail)
    engine.submit([request("a", (5,)), request("b", (6,))])
    with pytest.raises(EngineError, match=r"out of memory; 2 requests are lost and the engine is quarantined"):
        engine.step()
    assert (engine.state, engine.version, engine.num_running) == (EngineState.QUARANTINED, None, 0)
    with pytest.raises(EngineError, match="quarantined"):
        engine.submit([request("c", (5,))])
    hook.remove()
    own = {name: tensor.clone() for name, tensor in named_state(model)[0].items()}
    engine.load(V2, own)
    assert engine.state is EngineState.SERVING
    assert len(run(engine, [request("a", (5,))])) == 1


def test_a_copy_that_fails_half_way_quarantines_and_the_next_step_says_what_is_lost(
    model: PreTrainedModel, model_dir: Path
) -> None:
    # Elements that share memory can be read but not written, so torch refuses the copy of this tensor only.
    model.get_submodule("model.norm").weight = torch.nn.Parameter(torch.ones(1).expand(64), requires_grad=False)
    settings = TorchEngineSettings(model_dir=model_dir)
    engine = TorchEngine(model, load_tokenizer(model_dir), settings=settings, version=V1)
    engine.submit([request("a", (5,)), request("b", (6,))])
    engine.step()
    with pytest.raises(EngineError, match=r"copying version 1\.2 failed half-way.*the engine is quarantined"):
        engine.load(V2, {name: tensor.clone() for name, tensor in named_state(model)[0].items()})
    assert (engine.state, engine.version, engine.num_running) == (EngineState.QUARANTINED, None, 2)
    with pytest.raises(EngineError, match="2 requests are lost"):
        engine.step()
    assert engine.num_running == 0
    with pytest.raises(EngineError, match="quarantined"):
        engine.step()


@pytest.fixture
def engine_with_model(model: PreTrainedModel, model_dir: Path) -> tuple[TorchEngine, PreTrainedModel]:
    settings = TorchEngineSettings(model_dir=model_dir)
    return TorchEngine(model, load_tokenizer(model_dir), settings=settings, version=V1), model


def test_a_context_beyond_the_model_is_refused(model_dir: Path) -> None:
    with pytest.raises(EngineError, match="max_context_tokens is 65; allowed are at least 2 and at most 64"):
        open_torch_engine(TorchEngineSettings(model_dir=model_dir, max_context_tokens=65))


def test_prefills_are_split_by_distinct_padded_tokens(engine: TorchEngine, model_dir: Path) -> None:
    requests = [request(f"r{i}", p, seed=i) for i, p in enumerate([(5,) * 4] * 3 + [(6,) * 4, (7,) * 6, (5,) * 20])]
    batches = list(split_prefill(requests, max_tokens=10))
    assert [len(batch) for batch in batches] == [4, 1, 1]
    assert [r.request_id for batch in batches for r in batch] == [r.request_id for r in requests]
    small = open_torch_engine(TorchEngineSettings(model_dir=model_dir, max_prefill_tokens=10), version=V1)
    whole = run(engine, requests)
    for name, generation in run(small, requests).items():
        assert_same(whole[name], generation)


def test_padding_is_on_the_left() -> None:
    tokens, mask = pad_left([np.array([5], dtype=np.int32), np.array([6, 7], dtype=np.int32)])
    assert tokens.tolist() == [[0, 5], [6, 7]]
    assert mask.tolist() == [[False, True], [True, True]]
