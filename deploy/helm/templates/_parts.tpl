{{/* What several manifests have in common. */}}

{{- define "name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "labels" -}}
app.kubernetes.io/name: conv-advisor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "described" -}}
{{ include "labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "pod" -}}
automountServiceAccountToken: false
# The variables of a Service named conv-advisor (CONV_ADVISOR_PORT=tcp://...) would be read as settings.
enableServiceLinks: false
terminationGracePeriodSeconds: 30
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "granted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "cluster-variables" -}}
- { name: CONV_ADVISOR_SCHEDULER, value: "tls://{{ include "name" . }}-scheduler:8786" }
- { name: CONV_ADVISOR_SCHEDULER_CA_FILE, value: /run/secrets/cluster/ca.pem }
- { name: CONV_ADVISOR_SCHEDULER_CERT_FILE, value: /run/secrets/cluster/cert.pem }
- { name: CONV_ADVISOR_SCHEDULER_KEY_FILE, value: /run/secrets/cluster/key.pem }
{{- end }}

{{- define "cluster-volume" -}}
- name: cluster
  secret: { secretName: {{ .Values.cluster.secret }}, defaultMode: 0440 }
{{- end }}

{{- define "to-names" -}}
- to:
    - namespaceSelector:
        matchLabels: { kubernetes.io/metadata.name: kube-system }
  ports:
    - { protocol: UDP, port: 53 }
    - { protocol: TCP, port: 53 }
{{- end }}
