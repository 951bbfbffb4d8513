// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
)

// chart is drawn as SVG by hand: there are two kinds, of a few values each, and the
// same values give the same bytes.
type chart struct {
	title, unit string
	of          string // what x is a number of; empty: x speaks for itself
	x           []string
	series      []series
}

// series is one value for each x; NaN: there is none.
type series struct {
	name string
	y    []float64
}

// In pixels.
const (
	chartWidth, chartHeight                       = 640, 320
	marginLeft, marginRight, marginTop, marginLow = 60, 16, 56, 32
)

var colours = []string{"#9aa5b1", "#d97706", "#2563eb", "#059669"}

// top is the axis's end: 1, 2 or 5 times a power of ten, not below any value.
func (c *chart) top() float64 {
	most := 0.0
	for _, s := range c.series {
		for _, y := range s.y {
			if y > most {
				most = y
			}
		}
	}
	if most <= 0 {
		return 1
	}
	ten := math.Pow(10, math.Floor(math.Log10(most)))
	for _, n := range []float64{1, 2, 5} {
		if n*ten >= most {
			return n * ten
		}
	}
	return 10 * ten
}

// place of a value, and of the i-th x, which has a part of the width to itself.
func (c *chart) down(y float64) float64 {
	return chartHeight - marginLow - y/c.top()*(chartHeight-marginLow-marginTop)
}

func (c *chart) step() float64 {
	return (chartWidth - marginLeft - marginRight) / float64(max(len(c.x), 1))
}
func (c *chart) across(i int) float64 { return marginLeft + (float64(i)+.5)*c.step() }

// frame is all but the values.
func (c *chart) frame(draw func(*bytes.Buffer)) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, chartHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", chartWidth, chartHeight)
	title := c.title
	if c.unit != "" {
		title += ", " + c.unit
	}
	fmt.Fprintf(&b, `<text x="%d" y="20" font-size="14">%s</text>`+"\n", marginLeft, html.EscapeString(title))
	for i, s := range c.series {
		if s.name != "" {
			fmt.Fprintf(&b, `<rect x="%d" y="32" width="10" height="10" fill="%s"/><text x="%d" y="41">%s</text>`+"\n",
				marginLeft+150*i, colours[i%len(colours)], marginLeft+150*i+15, html.EscapeString(s.name))
		}
	}
	for i := range 5 {
		y := c.top() * float64(i) / 4
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.4g</text>`+"\n",
			marginLeft, chartWidth-marginRight, c.down(y), c.down(y), marginLeft-6, c.down(y)+4, y)
	}
	for i, x := range c.x {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", c.across(i), chartHeight-marginLow+18, html.EscapeString(x))
	}
	if c.of != "" {
		fmt.Fprintf(&b, `<text x="6" y="%d">%s</text>`+"\n", chartHeight-marginLow+18, html.EscapeString(c.of))
	}
	draw(&b)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (c *chart) bars() []byte {
	return c.frame(func(b *bytes.Buffer) {
		width := c.step() * .8 / float64(max(len(c.series), 1))
		for i, s := range c.series {
			for j, y := range s.y {
				x := c.across(j) - c.step()*.4 + float64(i)*width
				fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"><title>%.4g</title></rect>`+"\n",
					x, c.down(y), width, c.down(0)-c.down(y), colours[i%len(colours)], y)
			}
		}
	})
}

func (c *chart) lines() []byte {
	return c.frame(func(b *bytes.Buffer) {
		for i, s := range c.series {
			fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, colours[i%len(colours)])
			for j, y := range s.y {
				if !math.IsNaN(y) {
					fmt.Fprintf(b, "%.1f,%.1f ", c.across(j), c.down(y))
				}
			}
			b.WriteString(`"/>` + "\n")
		}
	})
}
