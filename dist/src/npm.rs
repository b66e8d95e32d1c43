//! Writes the npm packages: `toolgate-server` with a launcher, and one package with the binary for
//! each platform. npm installs the package of the platform that it runs on, so the launcher
//! downloads nothing later.

use serde_json::{Map, Value, json};

use crate::archive::{ArchiveFileTree, TarPathStyle, gzip};
use crate::release::{LICENSE, PlatformRelease, SUMMARY, VERSION};
use crate::target::{PackedPlatform, TARGETS};

const LAUNCHER: &str = include_str!("../files/launcher.js");
const DESCRIPTION: &str = include_str!("../files/package.md");

/// Returns the npm packages, each with its file name and bytes: that of the platform, and the one
/// with the launcher, which people install.
pub(crate) fn pack(release: &PlatformRelease) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    Ok(vec![platform_package(release)?, main_package(release)?])
}

/// Returns the name of the npm package that contains the binary for `target`.
fn platform_name(target: PackedPlatform) -> String {
    format!("toolgate-server-linux-{}", target.node)
}

fn platform_package(release: &PlatformRelease) -> anyhow::Result<(String, Vec<u8>)> {
    let name = platform_name(release.target);
    let mut manifest = manifest(release, &name);
    manifest["description"] =
        json!(format!("The binary of toolgate-server for {}.", release.target.triple));
    manifest["os"] = json!(["linux"]);
    manifest["cpu"] = json!([release.target.node]);
    manifest["libc"] = json!(["glibc"]);
    let mut tree = ArchiveFileTree::default();
    tree.program("package/bin/toolgate", release.binary.as_slice());
    tree.file(
        "package/README.md",
        format!("# {name}\n\nThe binary of the package toolgate-server.\n"),
    );
    release.add_licenses(&mut tree, "package");
    finish(release, &name, &manifest, tree)
}

fn main_package(release: &PlatformRelease) -> anyhow::Result<(String, Vec<u8>)> {
    let name = "toolgate-server";
    let mut manifest = manifest(release, name);
    manifest["mcpName"] = json!(release.server_name);
    manifest["keywords"] = json!(["mcp", "model-context-protocol", "agents", "sandbox", "gateway"]);
    manifest["bin"] = json!({ "toolgate": "launcher.js", "toolgate-server": "launcher.js" });
    manifest["engines"] = json!({ "node": ">=18" });
    let platforms = TARGETS.map(|target| (platform_name(target), json!(VERSION)));
    manifest["optionalDependencies"] = Value::Object(Map::from_iter(platforms));
    let mut tree = ArchiveFileTree::default();
    tree.program("package/launcher.js", LAUNCHER);
    tree.file("package/README.md", DESCRIPTION);
    // Nothing in this package depends on the platform, so each platform packs the same bytes.
    tree.file("package/LICENSE", release.license.as_slice());
    finish(release, name, &manifest, tree)
}

/// Returns the fields of `package.json` that all npm packages share.
fn manifest(release: &PlatformRelease, name: &str) -> Value {
    json!({
        "name": name,
        "version": VERSION,
        "description": SUMMARY,
        "license": LICENSE,
        "repository": { "type": "git", "url": format!("git+{}.git", release.source_url) },
    })
}

/// Adds `manifest` to the files of the package as `package.json`. Returns the file name and the
/// bytes of the package.
fn finish(
    release: &PlatformRelease,
    name: &str,
    manifest: &Value,
    mut tree: ArchiveFileTree,
) -> anyhow::Result<(String, Vec<u8>)> {
    tree.file("package/package.json", serde_json::to_string_pretty(manifest)? + "\n");
    let tar = tree.tar(release.epoch, TarPathStyle::Plain)?;
    Ok((format!("{name}-{VERSION}.tgz"), gzip(&tar, release.level)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_finds_the_package_of_every_platform() {
        assert!(LAUNCHER.contains("`toolgate-server-${process.platform}-${process.arch}`"));
        let names = TARGETS.map(platform_name);
        assert_eq!(names, ["toolgate-server-linux-x64", "toolgate-server-linux-arm64"]);
    }
}
