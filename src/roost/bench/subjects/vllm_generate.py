"""vLLM alone: its prefix cache on, text left undecoded, a cache as large as the job needs."""

from __future__ import annotations

import time

from roost.bench.channel import Channel
from roost.bench.job import Job
from roost.bench.memory import PeakMemory
from roost.bench.subjects.caches import set_up_vllm
from roost.bench.subjects.decoding import prompts_of_turns, turn_of, working_dtype


def serve(job: Job, channel: Channel) -> None:
    """Decode all completions a turn."""
    share = set_up_vllm(job)
    import torch
    from vllm import LLM, SamplingParams, TokensPrompt, __version__

    dtype = str(working_dtype(job.model)).removeprefix("torch.")
    llm = LLM(
        model=job.model,
        dtype=dtype,
        max_model_len=job.sequence_tokens,
        max_num_seqs=job.prompts * job.generations,
        enable_prefix_caching=True,
        **share,
    )
    sampling = SamplingParams(
        n=job.generations,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_tokens=job.completion_tokens,
        ignore_eos=True,
        detokenize=False,
    )
    memory = PeakMemory(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    batches = prompts_of_turns(job, llm.get_tokenizer())
    channel.ready(
        {
            "vllm": __version__,
            "weights": dtype,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "temperature": sampling.temperature,
            "prefix_caching": True,
            "threads": job.threads,
            **share,
        }
    )
    for step, _ in enumerate(channel.goes()):
        inputs = [TokensPrompt(prompt_token_ids=list(p.token_ids)) for p in batches[step]]
        start = time.perf_counter()
        outputs = llm.generate(inputs, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        lengths = [len(one.token_ids) for output in outputs for one in output.outputs]
        channel.report(turn_of(lengths, seconds, job, memory))
