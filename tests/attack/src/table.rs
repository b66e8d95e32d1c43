//! What came of all plays, case by case.

use std::collections::{BTreeMap, BTreeSet};

use super::case::Case;
use super::{AttackOptions, Verdicts, forms};

/// Prints a line a case, and what there is in all; gives back how many are broken.
pub(super) fn told(wanted: &AttackOptions, cases: &[Case], verdicts: &Verdicts) -> usize {
    let mut held = [0, 0];
    let mut broken = [0, 0];
    for (at, case) in cases.iter().enumerate() {
        let own: Vec<_> = verdicts.iter().filter(|((case, _, _), _)| *case == at).collect();
        let wrong: Vec<_> = own.iter().filter(|(_, verdict)| !verdict.wrong.is_empty()).collect();
        let of = usize::from(case.more);
        if own.is_empty() && !wanted.dialects.is_empty() {
            continue;
        }
        let line = if own.is_empty() {
            broken[of] += 1;
            "BROKEN  nobody plays it".to_owned()
        } else if wrong.is_empty() {
            held[of] += 1;
            let skipped = own.iter().find_map(|(_, verdict)| verdict.skipped.as_deref());
            let ways: BTreeSet<&str> = own.iter().map(|((_, _, way), _)| way.as_str()).collect();
            let mut notes: Vec<&str> =
                own.iter().flat_map(|(_, v)| v.notes.iter().map(String::as_str)).collect();
            notes.sort_unstable();
            notes.dedup();
            notes.truncate(3);
            match skipped {
                Some(why) => format!("skipped: {why}"),
                None => format!("held    {}   {}", brief(&ways), notes.join("; ")),
            }
        } else {
            broken[of] += 1;
            let forms = forms(case);
            let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for ((_, form, way), verdict) in &wrong {
                let label = forms.get(*form).map_or("", |form| form.label.as_str());
                groups.entry(label).or_default().insert(way);
                _ = verdict;
            }
            let ((_, _, way), first) = wrong[0];
            let groups: Vec<String> = groups
                .into_iter()
                .map(|(label, ways)| format!("{label}[{}]", brief(&ways)))
                .collect();
            let said: String = first.wrong.join("; ").chars().take(400).collect();
            format!(
                "BROKEN  {} of {} plays; {way}: {said}  ({})",
                wrong.len(),
                own.len(),
                groups.join("; ")
            )
        };
        println!("{:<5}{line}", case.id);
        if !wrong.is_empty() {
            println!("       {}", case.title);
        }
    }
    println!("{} held, {} broken", held[0], broken[0]);
    if held[1] + broken[1] > 0 {
        println!("more: {} held, {} broken", held[1], broken[1]);
    }
    broken[0] + broken[1]
}

/// The ways, by dialect.
fn brief(ways: &BTreeSet<&str>) -> String {
    let mut dialects: Vec<(&str, Vec<&str>)> = Vec::new();
    for (dialect, over) in ways.iter().filter_map(|way| way.split_once(' ')) {
        match dialects.iter_mut().find(|(known, _)| *known == dialect) {
            Some((_, overs)) => overs.push(over),
            None => dialects.push((dialect, vec![over])),
        }
    }
    let parts = dialects.iter().map(|(dialect, overs)| format!("{dialect} {}", overs.join(" ")));
    parts.collect::<Vec<_>>().join(", ")
}
