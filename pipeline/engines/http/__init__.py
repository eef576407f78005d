"""An inference server behind the engine protocol: vLLM, SGLang, TensorRT-LLM or any that speaks OpenAI's completions.

`engine.py` is the protocol's side, `host.py` the thread that talks HTTP, `dialects/` what each server says and is told,
`updates.py` how weights get into it, `probe.py` and `verdict.py` whether they did.
"""
