//! Draws the packages of the split `fresh` by a reproducible rule that nobody can influence.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};

use super::archives::{self, file_sha256, file_with_extension};
use super::{PackageSource, RegistryPackageKind, add_wheel_options, checkout, create_empty, run};
use crate::set::{QuestionCounts, count_questions};

/// Path of the list of drawn packages.
pub const FRESH_FILE: &str = "tests/search-eval/fresh.toml";
/// Path of the list from which packages are drawn. Each line has a kind and a name.
const POOL_FILE: &str = "tests/search-eval/pool.txt";
/// Number of packages to draw of each kind.
const PACKAGES_EACH: usize = 5;
/// Smallest number of documented functions. A package with fewer is skipped.
const DOCUMENTED_MIN: usize = 40;
/// Smallest number of questions of a package to draw. A package with fewer is skipped.
const QUESTIONS_MIN: usize = 20;
/// Largest number of packages of one kind that are downloaded during a draw. Few JavaScript
/// packages document their functions.
const FETCHED_MAX: usize = 60;

/// Kinds of packages that are drawn, each with its name in the list. There is one for each
/// language.
const KINDS: [(RegistryPackageKind, &str); 5] = [
    (RegistryPackageKind::RustDeb, "rust-deb"),
    (RegistryPackageKind::Wheel, "wheel"),
    (RegistryPackageKind::NodeDeb, "node-deb"),
    (RegistryPackageKind::GoDeb, "go-deb"),
    (RegistryPackageKind::RubyDeb, "ruby-deb"),
];

/// Draws packages with `seed` and writes them into [`FRESH_FILE`].
///
/// The candidates of a kind are sorted by the SHA-256 of the seed, the kind and the name. The first
/// candidates with enough documented functions and questions are drawn, in their newest version.
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
            let QuestionCounts { documented, questions } = count_questions(&sources, &source)?;
            eprintln!(
                "{kind_name} {name} {}: {documented} documented functions, {questions} questions",
                source.version
            );
            if documented >= DOCUMENTED_MIN && questions >= QUESTIONS_MIN {
                drawn.push(source);
                count += 1;
            }
        }
        ensure!(
            count == PACKAGES_EACH,
            "only {count} packages of kind {kind_name} have {QUESTIONS_MIN} questions"
        );
    }
    std::fs::write(checkout().join(FRESH_FILE), render(seed, &drawn)?)?;
    Ok(())
}

/// Returns the package names of one kind in `pool`, in the order in which the draw tries them.
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
         # names from pool.txt, and draw again with another seed. The seed is the abbreviated id, of\n\
         # twelve digits, of the last commit that changed crates/search.\n\nfresh = [\n"
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

/// Downloads the newest version of the package `name` into the folder `sources`.
fn fetch_newest(
    kind: RegistryPackageKind,
    name: &str,
    sources: &Path,
) -> anyhow::Result<PackageSource> {
    match kind {
        RegistryPackageKind::Wheel => newest_wheel(name, sources),
        _ => archives::fetch_version(kind, name, None, sources),
    }
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
        kind: RegistryPackageKind::Wheel,
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
        let pool = "# wheel comment\nwheel a\nwheel b\nwheel c\ngo-deb a\n";
        let reversed = "go-deb a\nwheel c\nwheel b\nwheel a\n";
        assert_eq!(order(pool, "1", "wheel"), order(reversed, "1", "wheel"));
        assert_eq!(order(pool, "1", "go-deb"), ["a"]);
        let orders: Vec<_> = (0..20).map(|seed| order(pool, &seed.to_string(), "wheel")).collect();
        assert!(orders.iter().any(|it| *it != orders[0]));
    }

    #[test]
    fn a_drawn_list_is_read_again() {
        let source = PackageSource {
            name: "@a/b".to_owned(),
            version: "1:2~c".to_owned(),
            kind: RegistryPackageKind::GoDeb,
            sha256: "00".to_owned(),
        };
        let text = render("7", std::slice::from_ref(&source)).unwrap();
        let lists: std::collections::BTreeMap<String, Vec<PackageSource>> =
            toml::from_str(&text).unwrap();
        assert_eq!(lists["fresh"], [source]);
    }
}
