//! The crates that the binary contains: their bill of materials, and the texts of their licenses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::read;

/// Name and version of a crate, separated by a space.
type CrateNameAndVersion = String;

/// Crates that are compiled into the binary, without those that only run during the build.
pub(crate) struct BinaryDependencies {
    crates: BTreeMap<CrateNameAndVersion, LinkedCrate>,
    root: CrateNameAndVersion,
}

/// Crate that is compiled into the binary.
#[derive(Default)]
struct LinkedCrate {
    name: String,
    version: String,
    /// License of the crate, as an SPDX expression.
    license: String,
    /// SHA-256 of the crate's archive in the registry. `None` for a crate of this workspace.
    checksum: Option<String>,
    /// Folder with the source code of the crate.
    folder: PathBuf,
    needs: BTreeSet<CrateNameAndVersion>,
}

impl BinaryDependencies {
    /// Reads the crates of toolgate for the platform `triple` from Cargo, without a network.
    pub(crate) fn load(triple: &str) -> anyhow::Result<Self> {
        // `cargo metadata` would add the features that only other packages of the workspace use.
        let edges = "normal,no-proc-macro";
        let tree = ["tree", "--package", "toolgate", "--edges", edges, "--target", triple];
        let tree = cargo(&[&tree[..], &["--prefix", "depth", "--format", "\t{p}\t{l}"]].concat())?;
        let (root, mut crates) = parse_tree(&tree)?;
        let metadata = ["metadata", "--format-version", "1", "--filter-platform", triple];
        let metadata: Value = serde_json::from_str(&cargo(&metadata)?)?;
        for package in metadata["packages"].as_array().into_iter().flatten() {
            if let Some(found) = crates.get_mut(&crate_id(package)) {
                let manifest = package["manifest_path"].as_str().unwrap_or_default();
                found.folder = Path::new(manifest).parent().map(Path::to_owned).unwrap_or_default();
            }
        }
        let lock = read(&checkout().join("Cargo.lock"))?;
        let lock: toml::Table = toml::from_str(std::str::from_utf8(&lock)?)?;
        for package in lock["package"].as_array().into_iter().flatten() {
            let text = |key: &str| package.get(key).and_then(toml::Value::as_str);
            let (Some(name), Some(version)) = (text("name"), text("version")) else { continue };
            if let Some(found) = crates.get_mut(&format!("{name} {version}")) {
                found.checksum = text("checksum").map(str::to_owned);
            }
        }
        Ok(Self { crates, root })
    }

    /// Returns the bill of materials in CycloneDX 1.6. It has no serial number, so that equal
    /// releases have equal bills.
    pub(crate) fn bill_of_materials(&self, binary_sha256: &str) -> anyhow::Result<Vec<u8>> {
        let root = self.crates.get(&self.root).context("cargo tree does not list toolgate")?;
        let mut application = component(root, "application");
        application["hashes"] = json!([{ "alg": "SHA-256", "content": binary_sha256 }]);
        let others = self.crates.iter().filter(|(id, _)| **id != self.root);
        let links = self.crates.values().map(|one| {
            let needs = one.needs.iter().filter_map(|id| self.crates.get(id)).map(package_url);
            json!({ "ref": package_url(one), "dependsOn": needs.collect::<Vec<_>>() })
        });
        let bill = json!({
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": { "component": application },
            "components": others.map(|(_, one)| component(one, "library")).collect::<Vec<_>>(),
            "dependencies": links.collect::<Vec<_>>(),
        });
        Ok((serde_json::to_string_pretty(&bill)? + "\n").into_bytes())
    }

    /// Returns a text with the license of each crate of other projects, followed by the license
    /// texts, each of them once.
    pub(crate) fn license_texts(&self) -> anyhow::Result<String> {
        let mut all = "toolgate contains these Rust crates of others:\n\n".to_owned();
        // Many crates have the same text.
        let mut texts: BTreeMap<String, BTreeSet<&CrateNameAndVersion>> = BTreeMap::new();
        for (id, one) in self.crates.iter().filter(|(_, one)| one.checksum.is_some()) {
            writeln!(all, "{id}: {}", spdx(&one.license))?;
            for file in license_files(&one.folder)? {
                let text = String::from_utf8_lossy(&read(&file)?).trim().to_owned();
                texts.entry(text).or_default().insert(id);
            }
        }
        for (text, crates) in texts {
            let crates = crates.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            write!(all, "\n{}\n{crates}\n\n{text}\n", "=".repeat(80))?;
        }
        Ok(all)
    }
}

/// Returns the name and version of `package`, an entry in the output of `cargo metadata`.
fn crate_id(package: &Value) -> CrateNameAndVersion {
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    format!("{} {}", text("name"), text("version"))
}

/// Parses the output of `cargo tree`: lines of depth, package and license. Returns the root crate,
/// and all crates with their dependencies. `cargo tree` lists the dependencies of a crate where the
/// crate first appears.
fn parse_tree(
    text: &str,
) -> anyhow::Result<(CrateNameAndVersion, BTreeMap<CrateNameAndVersion, LinkedCrate>)> {
    let mut crates: BTreeMap<CrateNameAndVersion, LinkedCrate> = BTreeMap::new();
    let mut above: Vec<CrateNameAndVersion> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('\t');
        let (Some(depth), Some(package), Some(license)) =
            (fields.next(), fields.next(), fields.next())
        else {
            bail!("cargo tree printed `{line}`, which has no package and license");
        };
        let depth: usize = depth.parse().with_context(|| format!("no depth in `{line}`"))?;
        let mut words = package.split_whitespace();
        let name = words.next().unwrap_or_default();
        let version = words.next().unwrap_or_default().trim_start_matches('v');
        let id = format!("{name} {version}");
        let found = crates.entry(id.clone()).or_default();
        found.name = name.to_owned();
        found.version = version.to_owned();
        found.license = license.trim_end_matches("(*)").trim().to_owned();
        above.truncate(depth);
        if let Some(parent) = above.last().and_then(|parent| crates.get_mut(parent)) {
            parent.needs.insert(id.clone());
        }
        above.push(id);
    }
    let root = above.first().context("cargo tree printed nothing")?.clone();
    Ok((root, crates))
}

/// Returns a license as an SPDX expression. Replaces the slashes of old manifests, which SPDX does
/// not allow.
fn spdx(license: &str) -> String {
    license.replace('/', " OR ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the package URL of a crate, which also identifies the crate in the bill of materials.
fn package_url(one: &LinkedCrate) -> String {
    format!("pkg:cargo/{}@{}", one.name, one.version)
}

fn component(one: &LinkedCrate, kind: &str) -> Value {
    let url = package_url(one);
    let mut component = json!({
        "type": kind,
        "bom-ref": url,
        "name": one.name,
        "version": one.version,
        "purl": url,
        "licenses": [{ "expression": spdx(&one.license) }],
    });
    if let Some(checksum) = &one.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// Returns the files in `folder` that state the license of a crate, sorted by name.
fn license_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let names = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && names.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the root folder of the checkout.
pub(crate) fn checkout() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Runs Cargo in the checkout and returns its output. Fails if `Cargo.lock` would have to change.
fn cargo(args: &[&str]) -> anyhow::Result<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(&cargo)
        .args(args)
        .args(["--locked", "--offline"])
        .current_dir(checkout())
        .output()
        .with_context(|| format!("cannot start `{cargo}`"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        bail!("`cargo {}` failed: {}", args.join(" "), message.trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_is_listed_twice_keeps_its_dependencies() {
        let tree = "0\ttoolgate v0.1.0 (/src/server)\tApache-2.0\n\
                    1\tbytes v1.0.0\tMIT\n\
                    1\thttp v1.2.0\tMIT/Apache-2.0\n\
                    2\tbytes v1.0.0\tMIT (*)\n";
        let (root, crates) = parse_tree(tree).unwrap();
        assert_eq!(root, "toolgate 0.1.0");
        let needs = |id: &str| crates[id].needs.iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(needs("toolgate 0.1.0"), ["bytes 1.0.0", "http 1.2.0"]);
        assert_eq!(needs("http 1.2.0"), ["bytes 1.0.0"]);
        assert_eq!(crates["bytes 1.0.0"].license, "MIT");
        assert_eq!(
            component(&crates["http 1.2.0"], "library")["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
    }
}
