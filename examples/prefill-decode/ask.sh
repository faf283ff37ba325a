#!/bin/sh
# ask.sh PROMPT_TOKENS ANSWER_TOKENS: a prompt that nobody sent before.
text=$(printf 'word%.0s' $(seq "$1"))
curl -sf http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \
  -d "{\"model\":\"tiny\",\"max_tokens\":$2,\"messages\":[{\"role\":\"user\",\"content\":\"$$ $text\"}]}" >/dev/null
