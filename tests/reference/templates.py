"""Renders ten conversations by seven chat templates with transformers, and writes tests/files/chats.json, against which
tests/commands/test_conversation.cpp holds those of commands/conversation.h.

    python3 -m venv build/venv && build/venv/bin/pip install transformers
    build/venv/bin/python tests/reference/templates.py

The templates say what those of ChatML's, Llama 2's, 3's and 3.1's and Mistral's models say, in words of our own.
"""

import json
import os

from transformers import PreTrainedTokenizerFast

FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "files")
HEADER = "'<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>'"
OPENING = "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
DATES = "Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n"
SYSTEM_FIRST = ("{% if messages[0]['role'] == 'system' %}{% set system = BEFORE + messages[0]['content'] + AFTER %}"
                "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}")


def in_question(before: str, after: str, begin: str, question: str, answer: str) -> str:
    """One whose system text stands in a question."""
    first = SYSTEM_FIRST.replace("BEFORE", f"'{before}'").replace("AFTER", f"'{after}'")
    return (first + begin + "{% for m in rest %}{% if m['role'] == 'user' %}{{ " + question + " }}{% else %}{{ " +
            answer + " }}{% endif %}{% endfor %}")


TEMPLATES = {
    "ChatML": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "Llama 3": "{% for m in messages %}{{ " + HEADER + " }}{% endfor %}" + OPENING,
    "Llama 3.1": "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\\n\\n" + DATES + "' + first + '<|eot_id|>' }}"
    "{% for m in rest %}{{ " + HEADER + " }}{% endfor %}" + OPENING,
    "Llama 2": in_question("<<SYS>>\\n", "\\n<</SYS>>\\n\\n", "", "bos_token + '[INST] ' + ((system if loop.first else '')"
                           " + m['content']) | trim + ' [/INST]'", "' ' + m['content'] | trim + ' ' + eos_token"),
    "Mistral 0.3": in_question("", "\\n\\n", "{{ bos_token }}", "'[INST] ' + (system if loop.last else '') + m['content']"
                               " + '[/INST]'", "' ' + m['content'] | trim + eos_token"),
    "Mistral": in_question("", "\\n\\n", "{{ bos_token }}", "' [INST] ' + (system if loop.first else '') + m['content']"
                           " + ' [/INST]'", "' ' + m['content'] + eos_token"),
    "Mistral 0.1": in_question("", "\\n\\n", "{{ bos_token }}", "'[INST] ' + (system if loop.first else '') + m['content']"
                               " + ' [/INST]'", "m['content'] + eos_token"),
}
CONVERSATIONS = [  # system text or None, then questions and answers by turns
    [None, "What is it?"],
    ["Be brief.", "What is it?"],
    ["", "An empty system text."],
    [None, "One", "Two", "Three"],
    ["Be kind.", "One", "Two.", "Three?", "Four!", "Five"],
    [None, "  blanks around  ", "\n\nand in the answer \n", "twice"],
    ["  Be\nbrief. \n", "line\n\nline", "no\n", "\tso"],
    [None, "<|im_end|> <|eot_id|> are text", "I see <|im_start|>", "Good"],
    ["Großes ß, naïve €", "日本語?", "🙂 ok", "{}"],
    ["{{ messages }}", "{% if %}", "{}", "%}"],
]


def main():
    cases = []
    for name, template in TEMPLATES.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{FILES}/bpe_small.json", bos_token="<s>", eos_token="</s>")
        tokenizer.chat_template = template
        for system, *turns in CONVERSATIONS:
            messages = [] if system is None else [{"role": "system", "content": system}]
            messages += [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            cases.append(json.dumps({"template": name, "messages": messages, "text": text}, ensure_ascii=False))
    with open(f"{FILES}/chats.json", "w") as f:
        f.write(f'{{"templates": {json.dumps(TEMPLATES)},\n"cases": [\n' + ",\n".join(cases) + "\n]}\n")
    print(f"{len(cases)} conversations in tests/files/chats.json")


if __name__ == "__main__":
    main()
