//! Draws the packages of the split `fresh` by a rule that nobody can steer.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use super::archives::{self, file_sha256, file_with_extension};
use super::{PackageKind, PackageSource, add_wheel_options, checkout, create_empty, run};
use crate::set::count_questions;

/// The list of drawn packages.
pub const FRESH_FILE: &str = "tests/search-eval/fresh.toml";
/// The packages from which is drawn: a kind and a name in each line.
const POOL_FILE: &str = "tests/search-eval/pool.txt";
/// Number of packages of each kind that are drawn.
const PACKAGES_EACH: usize = 5;
/// Smallest number of questions of a package. A package with fewer is skipped.
const QUESTIONS_MIN: usize = 20;
/// Largest number of packages of one kind that are fetched.
const FETCHED_MAX: usize = 25;

/// The kinds of packages, one for each language.
const KINDS: [(PackageKind, &str); 5] = [
    (PackageKind::Crate, "crate"),
    (PackageKind::Wheel, "wheel"),
    (PackageKind::Npm, "npm"),
    (PackageKind::GoDeb, "go-deb"),
    (PackageKind::RubyDeb, "ruby-deb"),
];

/// Draws packages with `seed` and writes them into [`FRESH_FILE`].
///
/// The candidates of a kind are sorted by the SHA-256 of the seed, the kind and the name. The first
/// ones with enough questions are drawn, in their newest version.
pub fn draw(seed: &str) -> anyhow::Result<()> {
    let pool = std::fs::read_to_string(checkout().join(POOL_FILE)).context(POOL_FILE)?;
    let sources = super::folder().join("sources/fresh");
    std::fs::create_dir_all(&sources)?;
    let mut drawn = Vec::new();
    for (kind, kind_name) in KINDS {
        let mut count = 0;
        for name in order(&pool, seed, kind_name).into_iter().take(FETCHED_MAX) {
            if count == PACKAGES_EACH {
                break;
            }
            let source = match fetch_newest(kind, name, &sources) {
                Ok(source) => source,
                Err(err) => {
                    eprintln!("skipping {name}: {err:#}");
                    continue;
                }
            };
            let questions = count_questions(&sources, &source)?;
            eprintln!("{kind_name} {name} {}: {questions} questions", source.version);
            if questions >= QUESTIONS_MIN {
                drawn.push(source);
                count += 1;
            }
        }
        if count < PACKAGES_EACH {
            bail!("only {count} packages of kind {kind_name} have {QUESTIONS_MIN} questions");
        }
    }
    std::fs::write(checkout().join(FRESH_FILE), render(seed, &drawn)?)?;
    Ok(())
}

/// Returns the names of one kind in the order of the draw.
fn order<'p>(pool: &'p str, seed: &str, kind: &str) -> Vec<&'p str> {
    let of_kind = |line: &'p str| line.strip_prefix(kind)?.strip_prefix(' ');
    let mut names: Vec<&str> = pool.lines().filter_map(of_kind).collect();
    names.sort_by_cached_key(|name| Sha256::digest(format!("{seed}\n{kind}\n{name}")).to_vec());
    names
}

fn render(seed: &str, drawn: &[PackageSource]) -> anyhow::Result<String> {
    let mut text = format!(
        "# Written by `cargo xtask eval-search --draw {seed}`. Nothing may be changed after a look at\n\
         # results on these packages. Otherwise, move them to `tune` in packages.toml, remove their\n\
         # names from pool.txt, and draw again with another seed.\n\nfresh = [\n"
    );
    for source in drawn {
        let kind = serde_json::to_string(&source.kind)?;
        let PackageSource { name, version, sha256, .. } = source;
        writeln!(
            text,
            "    {{ name = \"{name}\", version = \"{version}\", kind = {kind}, sha256 = \"{sha256}\" }},"
        )?;
    }
    text.push_str("]\n");
    Ok(text)
}

/// Fetches the newest version of a package into the folder `sources`.
fn fetch_newest(kind: PackageKind, name: &str, sources: &Path) -> anyhow::Result<PackageSource> {
    match kind {
        PackageKind::Crate => newest_crate(name, sources),
        PackageKind::Wheel => newest_wheel(name, sources),
        PackageKind::Npm | PackageKind::GoDeb | PackageKind::RubyDeb => {
            archives::fetch_version(kind, name, None, sources)
        }
        PackageKind::Sdist => bail!("sources of Python packages are not drawn"),
    }
}

fn newest_crate(name: &str, sources: &Path) -> anyhow::Result<PackageSource> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Outside of the workspace, whose lock file would choose the version.
    let shown =
        Command::new(cargo).args(["info", "--quiet", name]).current_dir(sources).output()?;
    let shown = String::from_utf8(shown.stdout)?;
    let version = shown.lines().find_map(|line| line.strip_prefix("version: "));
    let version = version.and_then(|it| it.split_whitespace().next());
    let version = version.with_context(|| format!("`cargo info {name}` shows no version"))?;
    let mut source = PackageSource {
        name: name.to_owned(),
        version: version.to_owned(),
        kind: PackageKind::Crate,
        sha256: String::new(),
    };
    if !source.folder(sources).is_dir() {
        super::fetch_crates(&[&source], sources)?;
    }
    let sums = std::fs::read_to_string(source.folder(sources).join(".cargo-checksum.json"))?;
    let sums: serde_json::Value = serde_json::from_str(&sums)?;
    source.sha256 = sums["package"].as_str().context("the crate has no checksum")?.to_owned();
    Ok(source)
}

fn newest_wheel(name: &str, sources: &Path) -> anyhow::Result<PackageSource> {
    let work = create_empty(&sources.join(".newest"))?;
    let mut pip = Command::new("python3");
    run(add_wheel_options(&mut pip).arg(name).current_dir(&work))?;
    let wheel = file_with_extension(&work, "whl")?;
    let file = wheel.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    let version = file.split('-').nth(1).context("the wheel has no version in its name")?;
    let source = PackageSource {
        name: name.to_owned(),
        version: version.to_owned(),
        kind: PackageKind::Wheel,
        sha256: file_sha256(&wheel)?,
    };
    if !source.folder(sources).is_dir() {
        super::fetch_wheels(&[&source], sources)?;
    }
    std::fs::remove_dir_all(&work)?;
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_depends_on_the_seed_and_the_kind_alone() {
        let pool = "# crate comment\ncrate a\ncrate b\ncrate c\nnpm a\n";
        let reversed = "npm a\ncrate c\ncrate b\ncrate a\n";
        assert_eq!(order(pool, "1", "crate"), order(reversed, "1", "crate"));
        assert_eq!(order(pool, "1", "npm"), ["a"]);
        let orders: Vec<_> = (0..20).map(|seed| order(pool, &seed.to_string(), "crate")).collect();
        assert!(orders.iter().any(|it| *it != orders[0]));
    }

    #[test]
    fn a_drawn_list_is_read_again() {
        let source = PackageSource {
            name: "@a/b".to_owned(),
            version: "1:2~c".to_owned(),
            kind: PackageKind::GoDeb,
            sha256: "00".to_owned(),
        };
        let text = render("7", std::slice::from_ref(&source)).unwrap();
        let lists: std::collections::BTreeMap<String, Vec<PackageSource>> =
            toml::from_str(&text).unwrap();
        assert_eq!(lists["fresh"], [source]);
    }
}
