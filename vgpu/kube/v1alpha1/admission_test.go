// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// policies are those of a file, by their names, as the API server compiles them.
func policies(t *testing.T, path string) map[string]validating.Validator {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]validating.Validator{}
	bound := map[string]bool{}
	for doc := range bytes.SplitSeq(data, []byte("\n---\n")) {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "ValidatingAdmissionPolicy":
			p := new(admissionv1.ValidatingAdmissionPolicy)
			if err := yaml.UnmarshalStrict(doc, p); err != nil {
				t.Fatal(err)
			}
			out[p.Name] = compile(t, p)
		case "ValidatingAdmissionPolicyBinding":
			b := new(admissionv1.ValidatingAdmissionPolicyBinding)
			if err := yaml.UnmarshalStrict(doc, b); err != nil || len(b.Spec.ValidationActions) == 0 {
				t.Fatalf("%v, a binding without actions", err)
			}
			bound[b.Spec.PolicyName] = true
		default:
			t.Errorf("%s is neither a policy nor a binding", kind.Kind)
		}
	}
	for name := range out {
		if !bound[name] {
			t.Errorf("%s is not bound", name)
		}
	}
	return out
}

// oldest is what Kubernetes 1.34 lets new policies use.
var oldest = version.MajorMinor(1, 33)

// compile does what the API server does with a policy
// (k8s.io/apiserver/pkg/admission/plugin/policy/validating).
func compile(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(oldest))
	if err != nil {
		t.Fatal(err)
	}
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	failed := func(what string, results ...cel.CompilationResult) {
		for _, r := range results {
			if r.Error != nil {
				t.Fatalf("%s, %s: %v", p.Name, what, r.Error)
			}
		}
	}
	for _, v := range p.Spec.Variables {
		failed(v.Name, compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, options, environment.NewExpressions))
	}
	var conditions, validations, messages []cel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		var message cel.ExpressionAccessor
		if v.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
		messages = append(messages, message)
	}
	for _, all := range [][]cel.ExpressionAccessor{conditions, validations, messages} {
		for _, e := range all {
			if e != nil {
				failed(e.GetExpression(), compiler.CompileCELExpression(e, options, environment.NewExpressions))
			}
		}
	}
	var matcher matchconditions.Matcher
	if conditions != nil {
		matcher = matchconditions.NewMatcher(compiler.CompileCondition(conditions, options, environment.NewExpressions), p.Spec.FailurePolicy, "policy", "validate", p.Name)
	}
	return validating.NewValidator(
		compiler.CompileCondition(validations, options, environment.NewExpressions), matcher,
		compiler.CompileCondition(nil, options, environment.NewExpressions),
		compiler.CompileCondition(messages, cel.OptionalVariableDeclarations{}, environment.NewExpressions), p.Spec.FailurePolicy, nil)
}

// denied is what a policy says against an object in JSON; empty: nothing.
func denied(t *testing.T, policy validating.Validator, group, resource, object string) string {
	t.Helper()
	u := new(unstructured.Unstructured)
	if err := json.Unmarshal([]byte(object), u); err != nil {
		t.Fatalf("%v: %s", err, object)
	}
	kind, of := u.GroupVersionKind(), schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
	attributes := admission.NewAttributesRecord(u, nil, kind, "ml", "name", of, "", admission.Create, nil, false, nil)
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedObject: admission.NewLazyObject(u), VersionedKind: kind}
	var said []string
	for _, d := range policy.Validate(t.Context(), of, versioned, nil, nil, celconfig.RuntimeCELCostBudget, nil).Decisions {
		if d.Action == validating.ActionDeny {
			said = append(said, d.Message)
		}
	}
	return strings.Join(said, "; ")
}

// configIn is an object with a VgpuConfig.
func configIn(kind, parameters string) string {
	config := fmt.Sprintf(`"config":[{"opaque":{"driver":"nic.example.com","parameters":{"weight":0}}},{"opaque":{"driver":"vgpu-shim.dev","parameters":%s}}]`, parameters)
	spec := map[string]string{
		"deviceclasses": `{%s}`, "resourceclaims": `{"devices":{%s}}`, "resourceclaimtemplates": `{"spec":{"devices":{%s}}}`,
	}[kind]
	name := map[string]string{"deviceclasses": "DeviceClass", "resourceclaims": "ResourceClaim", "resourceclaimtemplates": "ResourceClaimTemplate"}[kind]
	return fmt.Sprintf(`{"apiVersion":"resource.k8s.io/v1","kind":%q,"metadata":{"name":"x"},"spec":%s}`, name, fmt.Sprintf(spec, config))
}

const admissionFile = "../../../configs/kubernetes/admission.yaml"

// The policy of the API server and the driver agree on each VgpuConfig. What both
// refuse the policy says in words that name the field.
func TestThePolicyAgreesWithTheDriver(t *testing.T) {
	policy := policies(t, admissionFile)["vgpu-config"]
	long, tooLong := strings.Repeat("g", 63), strings.Repeat("g", 64)
	cases := map[string][]string{ // by the field that is at fault; empty: none
		"": {
			``, `"weight":1`, `"weight":10000`, `"weight":"7"`, `"weight":"0007"`, `"weight":2e2`, `"weight":200.0`, `"weight":null`,
			`"priority":"low"`, `"priority":"normal"`, `"priority":"high"`, `"priority":null`,
			`"quantum":"1ms"`, `"quantum":"10s"`, `"quantum":"1s500ms"`, `"quantum":".5s"`, `"quantum":"+20ms"`, `"quantum":"2.5ms"`, `"quantum":"1000us"`, `"quantum":"1000µs"`, `"quantum":null`,
			`"maxShare":1`, `"maxShare":0.5`, `"maxShare":5e-1`, `"maxShare":"0.5"`, `"maxShare":"80%"`, `"maxShare":"100%"`, `"maxShare":"12.5%"`, `"maxShare":null`,
			`"gang":"a"`, `"gang":"A.b_c-9"`, `"gang":"` + long + `"`, `"gang":null`,
			`"overrun":"corun"`, `"overrun":"freeze"`, `"overrun":"kill"`, `"overrun":null`, `"placement":"identical"`, `"placement":"allocated"`, `"placement":null`,
			`"weight":9,"priority":"high","quantum":"5ms","maxShare":"50%","gang":"g","overrun":"kill","placement":"allocated"`,
		},
		"weight": {
			`"weight":0`, `"weight":-5`, `"weight":10001`, `"weight":"10001"`, `"weight":"99999999999999999999"`, `"weight":1.5`, `"weight":1e9`, `"weight":""`,
			`"weight":" 5"`, `"weight":"+5"`, `"weight":"5.0"`, `"weight":true`, `"weight":[1]`, `"weight":{}`,
		},
		"priority":  {`"priority":""`, `"priority":"High"`, `"priority":"urgent"`, `"priority":1`, `"priority":true`},
		"quantum":   {`"quantum":""`, `"quantum":"0"`, `"quantum":"20"`, `"quantum":20`, `"quantum":"1us"`, `"quantum":"1h"`, `"quantum":"10.001s"`, `"quantum":"-20ms"`, `"quantum":"20 ms"`, `"quantum":"ms"`},
		"maxShare":  {`"maxShare":0`, `"maxShare":0.0`, `"maxShare":2`, `"maxShare":-0.5`, `"maxShare":"0"`, `"maxShare":"101%"`, `"maxShare":"1.01"`, `"maxShare":"%"`, `"maxShare":""`, `"maxShare":".5"`, `"maxShare":"1."`, `"maxShare":"50 %"`, `"maxShare":"1e-1"`, `"maxShare":false`},
		"gang":      {`"gang":""`, `"gang":"a b"`, `"gang":"a/b"`, `"gang":"ä"`, `"gang":"` + tooLong + `"`, `"gang":5`, `"gang":["a"]`},
		"overrun":   {`"overrun":""`, `"overrun":"wait"`, `"overrun":"Kill"`, `"overrun":1`},
		"placement": {`"placement":""`, `"placement":"here"`, `"placement":1`},
		"wieght":    {`"wieght":5`, `"wieght":null`},
		"Weight":    {`"Weight":5`, `"weight":5,"Weight":5`},
		"memory":    {`"memory":"4Gi"`},
	}
	agree := func(parameters, field string) {
		t.Helper()
		_, err := Decode([]byte(parameters))
		if (err == nil) != (field == "") {
			t.Errorf("%s: the driver says %v", parameters, err)
		}
		if err != nil && !strings.Contains(err.Error(), field) && !strings.Contains(err.Error(), "neither a text nor a number") {
			t.Errorf("%s: the driver says %v, and does not name %s", parameters, err, field)
		}
		for _, kind := range []string{"deviceclasses", "resourceclaims", "resourceclaimtemplates"} {
			said := denied(t, policy, "resource.k8s.io", kind, configIn(kind, parameters))
			if (said == "") != (field == "") || !strings.Contains(said, field) || strings.Contains(said, "resulted in error") {
				t.Errorf("%s in %s: the policy says %q", parameters, kind, said)
			}
		}
	}
	for field, all := range cases {
		for _, fields := range all {
			parameters := head
			if fields != "" {
				parameters += "," + fields
			}
			agree(parameters+"}", field)
		}
	}
	for _, other := range []string{`{}`, `{"apiVersion":"vgpu-shim.dev/v1","kind":"VgpuConfig"}`, `{"apiVersion":"vgpu-shim.dev/v1alpha1","kind":"GpuConfig"}`, `{"kind":"VgpuConfig"}`} {
		agree(other, "apiVersion: vgpu-shim.dev/v1alpha1")
	}
	for _, none := range []string{
		`{"apiVersion":"resource.k8s.io/v1","kind":"DeviceClass","spec":{}}`, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","spec":{}}`,
		`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","spec":{"devices":{"config":[{"requests":["a"]}]}}}`,
		`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaimTemplate","spec":{"spec":{}}}`,
	} {
		if said := denied(t, policy, "resource.k8s.io", "x", none); said != "" {
			t.Errorf("%s has none of ours, and is refused: %s", none, said)
		}
	}
}

// The templates ask for exactly what their classes allow.
func TestTheTemplatesHaveTheSizesOfTheirClasses(t *testing.T) {
	policy := policies(t, admissionFile)["vgpu-sizes"]
	read := func(name string) (out []*unstructured.Unstructured) {
		data, err := os.ReadFile("../../../configs/kubernetes/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range bytes.SplitSeq(data, []byte("\n---\n")) {
			u := new(unstructured.Unstructured)
			if err := yaml.Unmarshal(doc, &u.Object); err != nil {
				t.Fatal(err)
			}
			out = append(out, u)
		}
		return out
	}
	classes := map[string]bool{}
	for _, c := range read("deviceclasses.yaml") {
		classes[c.GetName()] = true
	}
	templates := read("claimtemplates.yaml")
	for _, u := range templates {
		object, err := json.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		if said := denied(t, policy, "resource.k8s.io", "resourceclaimtemplates", string(object)); said != "" || !classes[u.GetName()] {
			t.Errorf("%s: %q, among the classes %v", u.GetName(), said, classes)
		}
		for _, more := range [][2]string{{`Gi"`, `00Gi"`}, {`"share":"`, `"share":"1`}} {
			if denied(t, policy, "resource.k8s.io", "resourceclaimtemplates", strings.Replace(string(object), more[0], more[1], 1)) == "" {
				t.Errorf("%s may ask for more than its class", u.GetName())
			}
		}
	}
	if len(templates) != 3 || len(classes) != 4 {
		t.Errorf("%d templates, classes %v", len(templates), classes)
	}
}

// Each rule of the policy, for requests, limits and pods.
func TestWhatThePoliciesRefuse(t *testing.T) {
	all := policies(t, admissionFile)
	claim := func(request string) string {
		return `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","spec":{"devices":{"requests":[{"name":"other","exactly":{"deviceClassName":"nic"}},` + request + `]}}}`
	}
	template := func(request string) string {
		return `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaimTemplate","spec":{"spec":{"devices":{"requests":[` + request + `]}}}}`
	}
	pod := func(meta, spec, container string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"` + meta + `},"spec":{` + spec + `"containers":[{"name":"log"},{"name":"main"` + container + `}]}}`
	}
	const class = `"runtimeClassName":"vgpu",`
	for _, tc := range []struct{ description, policy, object, says string }{
		{"a size", "vgpu-sizes", claim(`{"name":"gpu","exactly":{"deviceClassName":"vgpu-small","capacity":{"requests":{"memory":"4Gi","share":"10"}}}}`), ""},
		{"less than a size, in other units", "vgpu-sizes", template(`{"name":"gpu","exactly":{"deviceClassName":"vgpu-large","capacity":{"requests":{"memory":"4000M","share":"1"}}}}`), ""},
		{"a class without a size", "vgpu-sizes", claim(`{"name":"gpu","exactly":{"deviceClassName":"vgpu"}}`), ""},
		{"more memory than the size", "vgpu-sizes", template(`{"name":"gpu","exactly":{"deviceClassName":"vgpu-small","capacity":{"requests":{"memory":"4097Mi","share":"10"}}}}`), "of the class vgpu-small must ask, in capacity.requests, for memory up to 4Gi and for a share up to 10"},
		{"more share than the size", "vgpu-sizes", claim(`{"name":"gpu","exactly":{"deviceClassName":"vgpu-medium","capacity":{"requests":{"memory":"1Gi","share":"26"}}}}`), "share up to 25"},
		{"a size that asks for no share", "vgpu-sizes", claim(`{"name":"gpu","exactly":{"deviceClassName":"vgpu-large","capacity":{"requests":{"memory":"1Gi"}}}}`), "share up to 50"},
		{"a size that asks for nothing", "vgpu-sizes", claim(`{"name":"gpu","exactly":{"deviceClassName":"vgpu-large"}}`), "vgpu-large"},
		{"one of several", "vgpu-sizes", claim(`{"name":"gpu","firstAvailable":[{"name":"a","deviceClassName":"vgpu"},{"name":"b","deviceClassName":"vgpu-small"}]}`), "vgpu-small"},

		{"limits and the class", "vgpu-limits", pod("", class, `,"resources":{"limits":{"vgpu-shim.dev/gpu":"1"}}`), ""},
		{"limits without the class", "vgpu-limits", pod("", "", `,"resources":{"limits":{"vgpu-shim.dev/gpu":"1"}}`), "must have runtimeClassName: vgpu"},
		{"limits of others", "vgpu-limits", pod("", "", `,"resources":{"limits":{"cpu":"1"}}`), ""},
		{"no limits", "vgpu-limits", pod("", "", ""), ""},

		{"a claim", "vgpu-claimless", pod("", class, `,"resources":{"claims":[{"name":"gpu"}]}`), ""},
		{"limits", "vgpu-claimless", pod("", class, `,"resources":{"limits":{"vgpu-shim.dev/gpu":"1"}}`), ""},
		{"no GPU wanted", "vgpu-claimless", pod(`,"annotations":{"vgpu-shim.dev/gpus":"0"}`, class, ""), ""},
		{"another class", "vgpu-claimless", pod("", `"runtimeClassName":"kata",`, ""), ""},
		{"no class", "vgpu-claimless", pod("", "", ""), ""},
		{"neither claim nor limits", "vgpu-claimless", pod(`,"annotations":{"vgpu-shim.dev/memory":"4Gi"}`, class, ""), "kube-scheduler counts no GPU for it"},
		{"a claim in the pod that no container names", "vgpu-claimless", pod("", class+`"resourceClaims":[{"name":"gpu","resourceClaimName":"g"}],`, ""), "in resources.claims of its containers"},
	} {
		t.Run(tc.policy+"/"+tc.description, func(t *testing.T) {
			said := denied(t, all[tc.policy], "", "x", tc.object)
			if (said == "") != (tc.says == "") || !strings.Contains(said, tc.says) || strings.Contains(said, "resulted in error") {
				t.Errorf("the policy says %q, want %q", said, tc.says)
			}
		})
	}
}
