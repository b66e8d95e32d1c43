//! Writes the index of a folder of packages: `server.json` for the MCP registry, and `SHA256SUMS`.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::release::{SUMMARY, VERSION, sha256_hex};
use crate::{read, write};

/// GitHub repository named in packages that are never published.
pub(crate) const PLACEHOLDER: &str = "OWNER/toolgate";

const SCHEMA: &str = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json";
const SUMS: &str = "SHA256SUMS";
const SERVER: &str = "server.json";

/// Writes `server.json` and `SHA256SUMS` for the packages in `folder`. `repository` is `OWNER/NAME`
/// on GitHub.
pub(crate) fn write_index(folder: &Path, repository: &str) -> anyhow::Result<()> {
    let server = server_json(folder, repository)?;
    write(&folder.join(SERVER), (serde_json::to_string_pretty(&server)? + "\n").as_bytes())?;
    let mut sums = String::new();
    for name in file_names(folder)?.into_iter().filter(|name| name != SUMS) {
        sums += &format!("{}  {name}\n", sha256_hex(&read(&folder.join(&name))?));
    }
    write(&folder.join(SUMS), sums.as_bytes())
}

/// Returns the name of the server in the MCP registry. `repository` is `OWNER/NAME` on GitHub.
pub(crate) fn server_name(repository: &str) -> anyhow::Result<String> {
    let Some((owner, name)) = repository.split_once('/') else {
        bail!("`{repository}` is not a repository such as OWNER/NAME");
    };
    Ok(format!("io.github.{owner}/{name}"))
}

/// Returns the URL of the source code. `repository` is `OWNER/NAME` on GitHub.
pub(crate) fn source_url(repository: &str) -> String {
    format!("https://github.com/{repository}")
}

/// Returns the entry for the MCP registry. The entry lists the npm and PyPI packages and the image
/// by name, and each MCP bundle in `folder` with its checksum.
fn server_json(folder: &Path, repository: &str) -> anyhow::Result<Value> {
    let folder_argument = json!({
        "type": "positional",
        "valueHint": "folder",
        "description": "Folder that the tools read and change",
        "format": "filepath",
        "isRequired": true,
        "default": ".",
    });
    let stdio = json!({ "type": "positional", "value": "stdio" });
    let arguments = json!([stdio, folder_argument]);
    let of_registry = |registry: &str, program: &str| {
        json!({
            "registryType": registry,
            "identifier": "toolgate-server",
            "version": VERSION,
            "runtimeHint": program,
            "transport": { "type": "stdio" },
            "packageArguments": arguments,
        })
    };
    let mut packages =
        vec![of_registry("pypi", "uvx"), of_registry("npm", "npx"), image_package(repository)];
    for name in file_names(folder)?.iter().filter(|name| name.ends_with(".mcpb")) {
        let source = source_url(repository);
        packages.push(json!({
            "registryType": "mcpb",
            "identifier": format!("{source}/releases/download/v{VERSION}/{name}"),
            "version": VERSION,
            "fileSha256": sha256_hex(&read(&folder.join(name))?),
            "transport": { "type": "stdio" },
        }));
    }
    Ok(json!({
        "$schema": SCHEMA,
        "name": server_name(repository)?,
        "title": "toolgate",
        "description": SUMMARY,
        "version": VERSION,
        "repository": { "url": source_url(repository), "source": "github" },
        "packages": packages,
    }))
}

fn image_package(repository: &str) -> Value {
    // Names of images have no capital letters.
    let image = repository.to_lowercase();
    json!({
        "registryType": "oci",
        "identifier": format!("ghcr.io/{image}:{VERSION}"),
        "runtimeHint": "docker",
        "transport": { "type": "stdio" },
        "runtimeArguments": [
            { "type": "named", "name": "--network", "value": "none" },
            {
                "type": "named",
                "name": "--mount",
                "value": "type=bind,src={folder},dst=/workspace",
                "variables": {
                    "folder": {
                        "description": "Folder that the tools read and change",
                        "format": "filepath",
                        "isRequired": true,
                    },
                },
            },
        ],
    })
}

/// Returns the names of the files in `folder`, sorted.
fn file_names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_entry_has_the_checksum_of_each_bundle() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = "toolgate-0.1.0-x86_64-unknown-linux-gnu.mcpb";
        fs::write(folder.path().join(bundle), "bundle").unwrap();
        write_index(folder.path(), "Ada/toolgate").unwrap();
        let text = fs::read(folder.path().join(SERVER)).unwrap();
        let server: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(server["name"], "io.github.Ada/toolgate");
        let packages = server["packages"].as_array().unwrap();
        let kinds: Vec<_> =
            packages.iter().map(|it| it["registryType"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["pypi", "npm", "oci", "mcpb"]);
        assert_eq!(packages[2]["identifier"], format!("ghcr.io/ada/toolgate:{VERSION}"));
        assert_eq!(packages[3]["fileSha256"], sha256_hex(b"bundle"));
        let sums = fs::read_to_string(folder.path().join(SUMS)).unwrap();
        assert_eq!(sums.lines().count(), 2, "{sums}");
    }

    #[test]
    fn the_summary_fits_the_registry() {
        assert!(SUMMARY.len() <= 100, "{} characters", SUMMARY.len());
    }
}
