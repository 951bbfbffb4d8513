{{- define "vgpu.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "vgpu.labels" -}}
app.kubernetes.io/name: vgpu
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* What all pods have: where they run, and how their image is had. */ -}}
{{- define "vgpu.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- end }}

{{- define "vgpu.strategy" -}}
{{- /* No surge: two vgpuds on one node, or two drivers of one name, can not be. */ -}}
updateStrategy:
  type: RollingUpdate
  rollingUpdate:
    maxSurge: 0
    maxUnavailable: {{ .Values.maxUnavailable }}
{{- end }}

{{- /* A container that changes the node. */ -}}
{{- define "vgpu.privileged" -}}
image: {{ include "vgpu.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  privileged: true
  readOnlyRootFilesystem: true
  runAsUser: 0
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- define "vgpu.containerd" -}}
- --containerd-socket={{ .Values.containerd.socket }}
- --restart={{ .Values.containerd.restart }}
- --unit={{ .Values.containerd.unit }}
{{- end }}

{{- /* A container that speaks to the API server, and has no rights on the node but to
root's files among its volumes. */ -}}
{{- define "vgpu.unprivileged" -}}
image: {{ include "vgpu.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsUser: 0
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
terminationMessagePolicy: FallbackToLogsOnError
env:
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- with .Values.apiServer }}
{{- if .host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .port | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "vgpu.tokenMount" -}}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{- /* As kubelet would mount it into all containers of the pod. */ -}}
{{- define "vgpu.tokenVolume" -}}
- name: token
  projected:
    defaultMode: 0400
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3607}
    - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
    - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}
