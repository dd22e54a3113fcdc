from pathlib import Path
from datasets import load_dataset, Dataset
import json
from trl import SFTConfig, SFTTrainer
DATA = Path(__file__).with_name("data")/"questions.jsonl"
def main(model, tokenizer, report):
    text = getattr(tokenizer,"tokenizer",tokenizer)
    rows=[json.loads(l) for l in DATA.read_text().splitlines()]
    texts=[]
    for r in rows:
        msgs=[{"role":"user","content":r["question"]},{"role":"assistant","content":r["answer"]}]
        texts.append(text.apply_chat_template(msgs, tokenize=False))
    print(texts[0])
    ds=Dataset.from_dict({"text":texts})
    args=SFTConfig(output_dir="out", num_train_epochs=2, per_device_train_batch_size=4, learning_rate=float(__import__("os").environ.get("LR","1e-3")), logging_steps=1, report_to="none", save_strategy="no", dataset_num_proc=None, packing=False, seed=3407, max_length=256, lr_scheduler_type="constant", disable_tqdm=True)
    tr=SFTTrainer(model=model, processing_class=text, train_dataset=ds, args=args)
    tr.train()
    losses=[e["loss"] for e in tr.state.log_history if "loss" in e]
    h=len(losses)//2
    print(losses, sum(losses[:h])/h, sum(losses[h:])/h)
    model.save_pretrained(Path(report.settings["report_dir"])/"adapter-sft")
    return 0
