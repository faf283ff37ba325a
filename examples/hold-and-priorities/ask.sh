#!/bin/sh
# ask.sh WHO TOKENS [OBJECTIVE]: a chat of that client; prints WHO and the status when it is answered.
curl -so /dev/null -w "$1 %{http_code}\n" http://127.0.0.1:8080/v1/chat/completions \
  -H 'content-type: application/json' -H "x-llm-d-inference-fairness-id: $1" -H "x-llm-d-inference-objective: $3" \
  -d "{\"model\": \"tiny\", \"max_tokens\": $2, \"messages\": [{\"role\": \"user\", \"content\": \"I am $1.\"}]}"
