//! Writes an MCP bundle (`.mcpb`), which desktop clients install by a double click.

use serde_json::json;

use crate::archive::ArchiveFileTree;
use crate::release::{LICENSE, PlatformRelease, SUMMARY, VERSION};

/// Returns the file name and the bytes of the MCP bundle.
pub(crate) fn pack(release: &PlatformRelease) -> anyhow::Result<(String, Vec<u8>)> {
    let manifest = json!({
        "manifest_version": "0.3",
        "name": "toolgate",
        "display_name": "toolgate",
        "version": VERSION,
        "description": SUMMARY,
        "author": { "name": "The toolgate contributors" },
        "repository": { "type": "git", "url": release.source_url },
        "license": LICENSE,
        "keywords": ["files", "code", "sandbox", "gateway"],
        "server": {
            "type": "binary",
            "entry_point": "server/toolgate",
            "mcp_config": {
                "command": "${__dirname}/server/toolgate",
                "args": ["stdio", "${user_config.folder}"],
                "env": { "TOOLGATE_READ_ONLY": "${user_config.read_only}" },
            },
        },
        // The tools depend on the folder and its settings.
        "tools_generated": true,
        "prompts_generated": true,
        "user_config": {
            "folder": {
                "type": "directory",
                "title": "Folder",
                "description": "Folder that the tools read and change. They cannot leave it.",
                "required": true,
            },
            "read_only": {
                "type": "boolean",
                "title": "Read only",
                "description": "Offer only tools that change nothing.",
                "default": false,
            },
        },
        "compatibility": { "platforms": ["linux"] },
    });
    let mut tree = ArchiveFileTree::default();
    tree.file("manifest.json", serde_json::to_string_pretty(&manifest)? + "\n");
    tree.program("server/toolgate", release.binary.as_slice());
    release.add_licenses(&mut tree, "licenses");
    Ok((format!("{}.mcpb", release.stem()), tree.zip(release.level)?))
}
