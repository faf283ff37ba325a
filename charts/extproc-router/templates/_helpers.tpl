{{- define "extproc.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "extproc.epp" -}}
{{- include "extproc.name" . }}-epp
{{- end }}

{{- define "extproc.selector" -}}
{{- /* Not the manifests' `extproc`: both may be in one namespace, while one moves to the other. */ -}}
app.kubernetes.io/name: extproc-router
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "extproc.labels" -}}
{{ include "extproc.selector" . }}
app.kubernetes.io/part-of: extproc-router
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "extproc.image" -}}
{{- with .image }}{{ with .registry }}{{ . }}/{{ end }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.version }}{{ end }}{{ end -}}
{{- end }}

{{- /* router.modelServers, with the shorter modelServers over it. */ -}}
{{- define "extproc.models" -}}
{{- $models := mergeOverwrite (deepCopy .Values.router.modelServers) .Values.modelServers -}}
{{- toYaml $models -}}
{{- end }}

{{- /* The Service whose EndpointSlices are watched: yours, or one of the chart's for your labels. */ -}}
{{- define "extproc.service" -}}
{{- (include "extproc.models" . | fromYaml).service | default (printf "%s-endpoints" (include "extproc.name" .)) -}}
{{- end }}

{{- /* "true" where the router is the endpoint picker of an InferencePool. */ -}}
{{- define "extproc.picks" -}}
{{- if and (eq .Values.mode "gateway") (ne .Values.provider.name "envoy-gateway") }}true{{ end -}}
{{- end }}

{{- /* What values.schema.json cannot say. */ -}}
{{- define "extproc.check" -}}
{{- $models := include "extproc.models" . | fromYaml -}}
{{- $epp := .Values.router.epp -}}
{{- if and $epp.config $epp.pool }}{{ fail "router.epp.config is the whole of extproc.yaml: write router.epp.pool into its `pools`" }}{{ end -}}
{{- with $epp.autoscaling }}{{ if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}{{ fail "router.epp.autoscaling: minReplicas is above maxReplicas" }}{{ end }}{{ end -}}
{{- if eq .Values.mode "gateway" -}}
{{- if not .Values.gateway.name }}{{ fail "mode gateway: name your Gateway with --set gateway.name=NAME" }}{{ end -}}
{{- if include "extproc.picks" . -}}
{{- if not $models.matchLabels }}{{ fail "mode gateway: an InferencePool selects vLLM's Pods by their labels: set router.modelServers.matchLabels" }}{{ end -}}
{{- else if not $models.service }}{{ fail "provider envoy-gateway: a route leads to a Service: set modelServers.service" }}{{ end -}}
{{- if and (eq .Values.provider.name "gke") (not .Values.provider.gke.proxySubnet) .Values.networkPolicy.enabled }}{{ fail "provider gke: set provider.gke.proxySubnet to the range of your proxy-only subnet, or networkPolicy.enabled=false" }}{{ end -}}
{{- else if not (or $models.service $models.matchLabels .Values.router.epp.config .Values.router.epp.pool.endpoints) }}{{ fail "where is vLLM? Name its Service with --set modelServers.service=NAME, or its Pods' labels with router.modelServers.matchLabels" }}
{{- end -}}
{{- end }}

{{- define "extproc.configuration" -}}
{{- $models := include "extproc.models" . | fromYaml -}}
{{- $epp := .Values.router.epp -}}
{{- $share := dict "cluster" "extproc" "secret" (dict "env" "SHARE_SECRET") -}}
{{- $_ := set $share "mesh" (dict "peers" (dict "kubernetes" (dict "service" (printf "%s-peers" (include "extproc.epp" .)) "port" "share"))) -}}
{{- $shared := ternary (dict "share" $share) dict $epp.share.enabled -}}
{{- if $epp.config }}{{ toYaml (merge (deepCopy $epp.config) $shared) }}{{ else -}}
{{- $numbers := list -}}
{{- range $models.targetPorts }}{{ $numbers = append $numbers (int .number) }}{{ end -}}
{{- $port := $models.port | default (eq (len $numbers) 1 | ternary (first $numbers) $numbers) -}}
{{- if kindIs "float64" $port }}{{ $port = int $port }}{{ end -}}
{{- $pool := merge (deepCopy $epp.pool) (dict "name" (include "extproc.name" .)) -}}
{{- if hasKey $pool "endpoints" -}}
{{- else if include "extproc.picks" . }}{{ $_ := set $pool "endpoints" (dict "inference_pool" (dict "name" (include "extproc.name" .))) -}}
{{- else }}{{ $_ := set $pool "endpoints" (dict "kubernetes" (dict "service" (include "extproc.service" .) "port" $port)) }}{{ end -}}
{{- $isListed := or (not (include "extproc.picks" .)) (eq .Values.provider.name "istio") -}}
{{- if not (hasKey $pool "fallbacks") }}{{ $_ := set $pool "fallbacks" (ternary 2 0 $isListed) }}{{ end -}}
{{- $strategy := get $pool "strategy" | default dict -}}
{{- if kindIs "map" $strategy -}}
{{- $strategy = merge $strategy (dict "name" "prefix_cache") -}}
{{- if eq $strategy.name "prefix_cache" -}}
{{- $strategy = merge $strategy (dict "engine" "l4-llama8b-fp8") -}}
{{- $strategy = merge $strategy (dict "gateways" (int (ternary $epp.autoscaling.minReplicas $epp.replicas $epp.autoscaling.enabled))) -}}
{{- end }}{{ $_ := set $pool "strategy" $strategy }}{{ end -}}
{{ toYaml (merge (dict "pools" (list $pool)) $shared) }}
{{- end -}}
{{- end }}

{{- /* The Secret with what the replicas encrypt their messages with. */ -}}
{{- define "extproc.shareSecret" -}}
{{- .Values.router.epp.share.existingSecret | default (printf "%s-share" (include "extproc.epp" .)) -}}
{{- end }}

{{- /* What a Pod needs of values to be started on the right node, by whom the registry knows. */ -}}
{{- define "extproc.placement" -}}
{{- with .Values.router.epp.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.router.epp.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.router.epp.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- /* The section `server` of the settings, as variables. */ -}}
{{- define "extproc.server" -}}
{{- $standalone := eq .Values.mode "standalone" -}}
- {name: EXTPROC_SERVER__LISTEN, value: "{{ ternary "127.0.0.1" "0.0.0.0" $standalone }}:9002"}
- {name: EXTPROC_SERVER__ADMIN, value: "0.0.0.0:9090"}
- {name: EXTPROC_SERVER__DRAIN_S, value: "30"}
{{- if $standalone }}
- {name: EXTPROC_SERVER__XDS, value: "true"}
{{- else if include "extproc.picks" . }}
- {name: EXTPROC_SERVER__HEALTH, value: "0.0.0.0:9003"}
{{- if ne .Values.provider.name "gke" }}
- {name: EXTPROC_SERVER__TLS__SELF_SIGNED, value: "true"}
{{- end }}
{{- if eq .Values.provider.name "nginx-gateway-fabric" }}
# nginx ends its stream with the request, so nobody sees the answer end: the mean time of a request.
- {name: EXTPROC_SERVER__UNSEEN_S, value: "10"}
{{- end }}
{{- end }}
{{- end }}
