from pathlib import Path
from datasets import Dataset
import json
from trl import GRPOConfig, GRPOTrainer
DATA = Path(__file__).with_name("data")/"questions.jsonl"
def vowels(completions, **_):
    return [sum(c in "aeiou" for c in t)/max(len(t),1) for t in completions]
def main(model, tokenizer, report):
    text = getattr(tokenizer,"tokenizer",tokenizer)
    rows=[json.loads(l) for l in DATA.read_text().splitlines()]
    prompts=[]
    for r in rows:
        msgs=[{"role":"user","content":r["question"]}]
        prompts.append(text.apply_chat_template(msgs, tokenize=False, add_generation_prompt=True).removeprefix(text.bos_token or ""))
    ds=Dataset.from_dict({"prompt":prompts})
    args=GRPOConfig(output_dir="out", max_steps=5, per_device_train_batch_size=8, num_generations=4, max_completion_length=32, learning_rate=2e-4, logging_steps=1, report_to="none", save_strategy="no", seed=3407, lr_scheduler_type="constant", disable_tqdm=True)
    before={n:p.detach().clone() for n,p in model.named_parameters() if p.requires_grad}
    tr=GRPOTrainer(model=model, processing_class=text, train_dataset=ds, reward_funcs=[vowels], args=args)
    tr.train()
    print(tr.state.log_history[0])
    print([(e["loss"],e["reward"]) for e in tr.state.log_history if "loss" in e])
    print("moved", sum(bool((p.detach()!=before[n]).any()) for n,p in model.named_parameters() if p.requires_grad), len(before))
    model.save_pretrained(Path(report.settings["report_dir"])/"adapter-grpo")
    return 0
