//! Draws plots of benchmark results as SVG.

use std::fmt::Write;

use crate::row::BenchResultRow;

const WIDTH: f64 = 720.0;
/// Horizontal position of the left end of a plot's scale, in pixels.
const LEFT: f64 = 170.0;
/// Horizontal position of the right end of a plot's scale, in pixels.
const RIGHT: f64 = WIDTH - 90.0;
const LINE: f64 = 26.0;
const TOP: f64 = 44.0;

/// Returns the file name of the plot of the row `what`.
pub(crate) fn file_name(what: &str) -> String {
    let words = what.to_lowercase();
    let words = words.split(|it: char| !it.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-") + ".svg"
}

/// Returns an SVG with the figures of all servers in `row` on a logarithmic scale, the largest
/// value on top.
pub(crate) fn comparison(row: &BenchResultRow) -> String {
    let mut all = row.contenders();
    all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let least = all.last().map_or(1.0, |(_, least)| least.log10().floor());
    let most = all.first().map_or(1.0, |(_, most)| most.log10().ceil()).max(least + 1.0);
    let x_of = |value: f64| LEFT + (value.log10() - least) / (most - least) * (RIGHT - LEFT);
    let height = TOP + LINE * all.len() as f64 + 24.0;
    let mut svg = head(row.what(), height);
    let bottom = height - 22.0;
    for power in least as i32..=most as i32 {
        let value = 10_f64.powi(power);
        let x = x_of(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" fill=\"#777\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            row.number(value).replace(".0", ""),
        );
    }
    for (number, (name, value)) in all.iter().enumerate() {
        let y = TOP + LINE * (number as f64 + 0.5);
        let x = x_of(*value);
        let colour = if *name == "toolgate" { "#0a6" } else { "#89a" };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <path d=\"M{LEFT} {y:.1}H{x:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 10.0,
            y + 4.5,
            escape(name),
            x + 10.0,
            y + 4.5,
            row.number(*value),
        );
    }
    svg + "</svg>\n"
}

/// Returns an SVG with the curve of `row`: values in `unit` by count, with both axes from zero.
pub(crate) fn curve(row: &BenchResultRow, unit: &str, points: &[(f64, f64)]) -> String {
    const BOTTOM: f64 = 250.0;
    let largest =
        |value: fn(&(f64, f64)) -> f64| points.iter().map(value).fold(f64::MIN_POSITIVE, f64::max);
    let count_max = largest(|point| point.0);
    let value_max = largest(|point| point.1) * 1.15;
    let x = |count: f64| 60.0 + count / count_max * (WIDTH - 120.0);
    let y = |value: f64| BOTTOM - value / value_max * (BOTTOM - TOP);
    let mut svg = head(row.what(), BOTTOM + 34.0);
    let _ = writeln!(
        svg,
        "<path d=\"M60 {TOP}V{BOTTOM}H{:.1}\" fill=\"none\" stroke=\"#aaa\"/>",
        WIDTH - 60.0
    );
    let line = points.iter().map(|(count, value)| format!("{:.1},{:.1}", x(*count), y(*value)));
    let line = line.collect::<Vec<_>>().join(" ");
    let _ = writeln!(
        svg,
        "<polyline points=\"{line}\" fill=\"none\" stroke=\"#0a6\" stroke-width=\"2\"/>"
    );
    for (count, value) in points {
        let x = x(*count);
        let y = y(*value);
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#0a6\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value:.1} {unit}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#777\">{count}</text>",
            y - 10.0,
            BOTTOM + 18.0,
        );
    }
    svg + "</svg>\n"
}

/// Returns the start of an SVG that is `height` pixels high and has the title `what`.
fn head(what: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"24\" font-weight=\"600\">{}</text>\n",
        escape(what)
    )
}

/// Escapes text for SVG.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
