//! A reader of OpenMetrics text that lets nothing pass: by the standard, and by none of our code.

use std::collections::{BTreeMap, HashMap};

/// What a text says: each sample by its name and labels, as they are written.
pub(super) struct Exposition {
    pub(super) samples: BTreeMap<String, f64>,
}

impl Exposition {
    /// What `text` says.
    #[track_caller]
    pub(super) fn of(text: &str) -> Self {
        let lines = text.strip_suffix("# EOF\n").expect("it ends with `# EOF`");
        assert!(lines.is_empty() || lines.ends_with('\n'), "its last line is cut off");
        let (mut kinds, mut samples) = (HashMap::<String, String>::new(), BTreeMap::new());
        let mut family = String::new();
        for line in lines.lines() {
            if let Some(said) = line.strip_prefix("# ") {
                let (what, said) = said.split_once(' ').expect(line);
                let (name, value) = said.split_once(' ').expect(line);
                is_name(name, line);
                assert!(matches!(what, "HELP" | "TYPE" | "UNIT"), "{line}");
                assert!(what != "UNIT" || name.ends_with(&format!("_{value}")), "{line}");
                if what == "TYPE" {
                    let kind = ["counter", "gauge", "histogram", "info"].contains(&value);
                    assert!(kind, "{line}");
                    let before = kinds.insert(name.to_owned(), value.to_owned());
                    assert_eq!(before, None, "twice: {line}");
                }
                name.clone_into(&mut family);
                continue;
            }
            let (key, value) = line.rsplit_once(' ').expect(line);
            let (name, labels) = match key.split_once('{') {
                Some((name, labels)) => (name, labels.strip_suffix('}').expect(line)),
                None => (key, ""),
            };
            is_name(name, line);
            let end = name.strip_prefix(family.as_str()).expect(line);
            let ends: &[&str] = match kinds[&family].as_str() {
                "counter" => &["_total", "_created"],
                "gauge" => &[""],
                "info" => &["_info"],
                _ => &["_bucket", "_count", "_sum", "_created"],
            };
            assert!(ends.contains(&end), "{line} is none of a {}", kinds[&family]);
            are_labels(labels, line);
            let value: f64 = value.parse().expect(line);
            assert_eq!(samples.insert(key.to_owned(), value), None, "twice: {line}");
        }
        let exposition = Self { samples };
        exposition.histograms_add_up();
        exposition
    }

    /// What it says of `key`, which is written as it is there.
    #[track_caller]
    pub(super) fn value(&self, key: &str) -> f64 {
        let names = || self.samples.keys().cloned().collect::<Vec<_>>().join("\n");
        *self.samples.get(key).unwrap_or_else(|| panic!("no {key} in\n{}", names()))
    }

    /// All samples of `name`, by their labels.
    pub(super) fn of_name(&self, name: &str) -> BTreeMap<String, f64> {
        let of = self.samples.iter().filter_map(|(key, value)| {
            let labels = key.strip_prefix(name)?;
            (labels.is_empty() || labels.starts_with('{')).then(|| (labels.to_owned(), *value))
        });
        of.collect()
    }

    /// Each bucket holds what those below it do, and the last holds all.
    #[track_caller]
    fn histograms_add_up(&self) {
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
fn is_name(name: &str, line: &str) {
    let mut letters = name.chars();
    let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    assert!(first && letters.all(|c| c.is_ascii_alphanumeric() || c == '_'), "{line}");
}

#[track_caller]
fn are_labels(mut labels: &str, line: &str) {
    while !labels.is_empty() {
        let (name, rest) = labels.split_once("=\"").expect(line);
        is_name(name, line);
        let (value, rest) = rest.split_once('"').expect(line);
        assert!(!value.contains('\\'), "none of ours has to be escaped: {line}");
        labels = rest.strip_prefix(',').unwrap_or(rest);
        assert!(rest.is_empty() || rest.starts_with(','), "{line}");
    }
}
