// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	vgpumetrics "github.com/vgpu-shim/vgpu/vgpu/metrics"
)

// oneOfEach is a vgpud that has one of everything, so that each metric is there.
type oneOfEach struct{}

func (oneOfEach) Info(context.Context, *v1.InfoRequest) (*v1.InfoResponse, error) {
	return &v1.InfoResponse{}, nil
}

func (oneOfEach) List(context.Context, *v1.ListRequest) (*v1.ListResponse, error) {
	return &v1.ListResponse{Vgpus: []*v1.VGPU{{Id: "00aa", Memory: []*v1.Memory{{Gpu: "GPU-1"}}}}}, nil
}

func (oneOfEach) ListGPUs(context.Context, *v1.ListGPUsRequest) (*v1.ListGPUsResponse, error) {
	return &v1.ListGPUsResponse{Gpus: []*v1.GPU{{Uuid: "GPU-1", MemoryFreeBytes: new(uint64)}}}, nil
}

func (oneOfEach) ListProcesses(context.Context, *v1.ListProcessesRequest) (*v1.ListProcessesResponse, error) {
	return &v1.ListProcessesResponse{}, nil
}

func (oneOfEach) Stats(context.Context, *v1.StatsRequest) (*v1.StatsResponse, error) {
	return &v1.StatsResponse{LogLinesDropped: new(uint64)}, nil
}

// exported are the metrics that vgpud and vgpu-kubelet serve, with their labels.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	registry := prometheus.NewRegistry()
	m := newMetrics(registry)
	m.observe("prepare", time.Now(), nil)
	daemon := vgpumetrics.Handler(oneOfEach{}, log.New(t.Output(), "", 0))
	kubelet := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	found := map[string][]string{}
	for _, serve := range []func(*httptest.ResponseRecorder){
		func(w *httptest.ResponseRecorder) {
			daemon.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		},
		func(w *httptest.ResponseRecorder) {
			kubelet.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		},
	} {
		w := httptest.NewRecorder()
		serve(w)
		text := expfmt.NewTextParser(model.UTF8Validation)
		families, err := text.TextToMetricFamilies(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		for name, f := range families {
			var labels []string
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			if f.GetMetric()[0].GetHistogram() != nil {
				found[name+"_sum"], found[name+"_count"] = labels, labels
				name, labels = name+"_bucket", append(slices.Clone(labels), "le")
			}
			found[name] = labels
		}
	}
	return found
}

// dashboard is what the test looks at.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, LegendFormat string }
	}
	Templating struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
}

// Each query of the dashboard is one, each metric in it is served, and so is each
// label. The label node is the scraper's (configs/helm/vgpu/templates/metrics.yaml).
func TestDashboardAsksForWhatIsServed(t *testing.T) {
	file, err := os.ReadFile("../../configs/grafana/vgpu.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(file, &d); err != nil {
		t.Fatal(err)
	}
	served := exported(t)
	ids, queries := map[int]bool{}, 0
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			queries++
			checkQuery(t, served, p.Title, target.Expr, target.LegendFormat)
		}
	}
	if queries < 20 {
		t.Errorf("%d queries", queries)
	}
	for _, v := range d.Templating.List {
		if q, ok := v.Query.(map[string]any); ok {
			m := regexp.MustCompile(`^label_values\((.*), ([a-z]+)\)$`).FindStringSubmatch(q["query"].(string))
			if m == nil {
				t.Errorf("variable %s: the query is %v", v.Name, q)
				continue
			}
			checkQuery(t, served, v.Name, m[1], "{{"+m[2]+"}}")
		}
	}
}

var variables = strings.NewReplacer("$__rate_interval", "1m", "$node", "one", "$gpu", "GPU-1")

func checkQuery(t *testing.T, served map[string][]string, where, query, legend string) {
	t.Helper()
	expr, err := parser.ParseExpr(variables.Replace(query))
	if err != nil {
		t.Errorf("%s: %v in %s", where, err, query)
		return
	}
	labels := map[string]bool{"node": true}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		has, ok := served[s.Name]
		if !ok {
			t.Errorf("%s: nobody serves %s", where, s.Name)
			return nil
		}
		for _, l := range has {
			labels[l] = true
		}
		for _, m := range s.LabelMatchers {
			if m.Name != "__name__" && m.Name != "node" && !slices.Contains(has, m.Name) {
				t.Errorf("%s: %s has no label %s, it has %v", where, s.Name, m.Name, has)
			}
		}
		return nil
	})
	var used []string
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.AggregateExpr:
			used = append(used, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				used = append(append(used, n.VectorMatching.MatchingLabels...), n.VectorMatching.Include...)
			}
		}
		return nil
	})
	for _, m := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(legend, -1) {
		used = append(used, m[1])
	}
	for _, l := range used {
		if !labels[l] {
			t.Errorf("%s: no metric of the query has the label %s, they have %v", where, l, slices.Sorted(maps.Keys(labels)))
		}
	}
}
