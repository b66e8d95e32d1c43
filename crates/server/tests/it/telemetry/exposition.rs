//! Strict parser of the OpenMetrics text format for tests. It shares no code with toolgate.

use std::collections::{BTreeMap, HashMap};

/// Parsed metrics page: the value of each sample, by its name and labels as written on the page.
pub(super) struct MetricsExposition {
    pub(super) samples: BTreeMap<String, f64>,
}

impl MetricsExposition {
    /// Parses the metrics page `text`. Panics if it breaks a rule of OpenMetrics.
    #[track_caller]
    pub(super) fn parse(text: &str) -> Self {
        let lines = text.strip_suffix("# EOF\n").expect("it ends with `# EOF`");
        assert!(lines.is_empty() || lines.ends_with('\n'), "its last line is cut off");
        let (mut kinds, mut samples) = (HashMap::<String, String>::new(), BTreeMap::new());
        let mut family = String::new();
        for line in lines.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let (keyword, rest) = comment.split_once(' ').expect(line);
                let (name, value) = rest.split_once(' ').expect(line);
                check_name(name, line);
                assert!(matches!(keyword, "HELP" | "TYPE" | "UNIT"), "{line}");
                assert!(keyword != "UNIT" || name.ends_with(&format!("_{value}")), "{line}");
                if keyword == "TYPE" {
                    let is_known = ["counter", "gauge", "histogram", "info"].contains(&value);
                    assert!(is_known, "{line}");
                    let before = kinds.insert(name.to_owned(), value.to_owned());
                    assert_eq!(before, None, "duplicate: {line}");
                }
                name.clone_into(&mut family);
                continue;
            }
            let (key, value) = line.rsplit_once(' ').expect(line);
            let (name, labels) = match key.split_once('{') {
                Some((name, labels)) => (name, labels.strip_suffix('}').expect(line)),
                None => (key, ""),
            };
            check_name(name, line);
            let suffix = name.strip_prefix(family.as_str()).expect(line);
            let suffixes: &[&str] = match kinds[&family].as_str() {
                "counter" => &["_total", "_created"],
                "gauge" => &[""],
                "info" => &["_info"],
                _ => &["_bucket", "_count", "_sum", "_created"],
            };
            assert!(suffixes.contains(&suffix), "{line} is not a sample of a {}", kinds[&family]);
            check_labels(labels, line);
            let value: f64 = value.parse().expect(line);
            assert_eq!(samples.insert(key.to_owned(), value), None, "duplicate: {line}");
        }
        let exposition = Self { samples };
        exposition.check_histograms();
        exposition
    }

    /// Returns the value of the sample `key`, which is a metric name with labels. Panics if it is
    /// missing.
    #[track_caller]
    pub(super) fn value(&self, key: &str) -> f64 {
        let names = || self.samples.keys().cloned().collect::<Vec<_>>().join("\n");
        *self.samples.get(key).unwrap_or_else(|| panic!("no {key} in\n{}", names()))
    }

    /// Returns all samples of the metric `name`, by their labels.
    pub(super) fn samples_of(&self, name: &str) -> BTreeMap<String, f64> {
        let samples = self.samples.iter().filter_map(|(key, value)| {
            let labels = key.strip_prefix(name)?;
            (labels.is_empty() || labels.starts_with('{')).then(|| (labels.to_owned(), *value))
        });
        samples.collect()
    }

    /// Checks that the buckets of each histogram are cumulative and end with the total.
    #[track_caller]
    fn check_histograms(&self) {
        let mut series: BTreeMap<(String, String), Vec<(f64, f64)>> = BTreeMap::new();
        for (key, count) in &self.samples {
            let Some((name, labels)) = key.split_once("_bucket{") else { continue };
            let (before, bound) = labels.split_once("le=\"").expect(key);
            let (bound, after) = bound.split_once('"').expect(key);
            let bound = bound.replace("+Inf", "inf").parse::<f64>().expect(key);
            let others = format!("{before}{}", after.trim_end_matches('}'));
            let others = others.trim_matches(',').to_owned();
            series.entry((name.to_owned(), others)).or_default().push((bound, *count));
        }
        for ((name, labels), mut buckets) in series {
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            assert!(buckets.is_sorted_by(|one, other| one.1 <= other.1), "{name}{{{labels}}}");
            let (last, all) = *buckets.last().unwrap();
            assert!(last.is_infinite(), "{name}{{{labels}}} has no last bucket");
            assert_eq!(all, self.value(&format!("{name}_count{{{labels}}}")));
        }
    }
}

#[track_caller]
fn check_name(name: &str, line: &str) {
    let mut letters = name.chars();
    let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    assert!(first && letters.all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}");
}

#[track_caller]
fn check_labels(mut labels: &str, line: &str) {
    while !labels.is_empty() {
        let (name, rest) = labels.split_once("=\"").expect(line);
        check_name(name, line);
        let (value, rest) = rest.split_once('"').expect(line);
        assert!(!value.contains('\\'), "no value of toolgate needs escapes: {line}");
        labels = rest.strip_prefix(',').unwrap_or(rest);
        assert!(rest.is_empty() || rest.starts_with(','), "{line}");
    }
}
