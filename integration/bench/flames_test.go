// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/pprof/profile"
)

func TestStacksAreFoldedFromTheirRoot(t *testing.T) {
	at := func(names ...string) *profile.Location {
		l := &profile.Location{}
		for _, name := range names {
			l.Line = append(l.Line, profile.Line{Function: &profile.Function{Name: name}})
		}
		return l
	}
	main, step := at("main"), at("inlined", "step")
	p := &profile.Profile{Sample: []*profile.Sample{
		{Location: []*profile.Location{step, main}, Value: []int64{2, 200}},
		{Location: []*profile.Location{main}, Value: []int64{1, 100}},
		{Location: []*profile.Location{step, main}, Value: []int64{3, 300}},
	}}
	if got, want := folded(p), "main 1\nmain;step;inlined 5\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFlameGraphsAreStill(t *testing.T) {
	const drawn = `<svg width="9" onload="init(evt)" height="9">
<!-- who drew it -->
<script type="text/ecmascript">
<![CDATA[
	function s(info) { details.nodeValue = "<text>" + info; }
]]>
</script>
<text x="1" >a title</text>
<text x="1" id="details" > </text>
<text x="1" id="unzoom" onclick="unzoom()" style="opacity:0.0" >Reset Zoom</text>
<text x="1" id="search" onmouseover="searchover()" onmouseout="searchout()" onclick="search_prompt()" >Search</text>
<g class="func_g" onmouseover="s('a-&gt;b (5 samples)')" onmouseout="c()" onclick="zoom(this)">
<title>a-&gt;b (5 samples)</title><text x="2" >a..</text>
</g>
</svg>`
	const want = `<svg width="9" height="9">
<!-- who drew it -->
<text x="1" >a title</text>
<g class="func_g">
<title>a-&gt;b (5 samples)</title><text x="2" >a..</text>
</g>
</svg>`
	if got := string(still([]byte(drawn))); got != want {
		t.Errorf("got\n%s", got)
	}
}
