//! Writes a Python wheel that contains the binary. Installers copy the binary into the
//! environment's `bin` folder, so no Python runs between a client and toolgate.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::archive::ArchiveFileTree;
use crate::release::{LICENSE, PlatformRelease, SUMMARY, VERSION};

/// Description of the package, which package registries show as its page.
const DESCRIPTION: &str = include_str!("../files/package.md");

/// Script of the command `toolgate-server`, which executes the program `toolgate` beside it.
/// Registries know the package as `toolgate-server`, and `uvx` runs the command that has the name
/// of the package.
const ALIAS: &str = "\
#!python
import os
import sys

program = os.path.join(os.path.dirname(os.path.realpath(__file__)), \"toolgate\")
os.execv(program, [program, *sys.argv[1:]])
";

/// Returns the file name and the bytes of the wheel.
pub(crate) fn pack(release: &PlatformRelease) -> anyhow::Result<(String, Vec<u8>)> {
    let base = format!("toolgate_server-{VERSION}");
    let (glibc, machine) = (release.needs.glibc.underscored(), release.target.machine);
    let tag = format!("py3-none-manylinux_{glibc}_{machine}");
    let mut tree = ArchiveFileTree::default();
    let scripts = format!("{base}.data/scripts");
    tree.program(format!("{scripts}/toolgate"), release.binary.as_slice());
    tree.program(format!("{scripts}/toolgate-server"), ALIAS);
    let info = format!("{base}.dist-info");
    tree.file(format!("{info}/METADATA"), metadata(release));
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: toolgate-dist {VERSION}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    tree.file(format!("{info}/WHEEL"), wheel);
    release.add_licenses(&mut tree, &format!("{info}/licenses"));
    let record = record(&tree, &info);
    tree.file(format!("{info}/RECORD"), record);
    Ok((format!("{base}-{tag}.whl"), tree.zip(release.level)?))
}

/// Returns the file `METADATA` of the wheel, in the format of Python's core metadata.
fn metadata(release: &PlatformRelease) -> String {
    let (source, name) = (&release.source_url, &release.server_name);
    format!(
        "Metadata-Version: 2.4\n\
         Name: toolgate-server\n\
         Version: {VERSION}\n\
         Summary: {SUMMARY}\n\
         License-Expression: {LICENSE}\n\
         License-File: LICENSE\n\
         License-File: LICENSES-OF-OTHERS\n\
         Keywords: mcp,model-context-protocol,agents,sandbox,gateway\n\
         Classifier: Environment :: Console\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Project-URL: Source, {source}\n\
         Requires-Python: >=3.8\n\
         Description-Content-Type: text/markdown\n\
         \n\
         {DESCRIPTION}\n\
         <!-- mcp-name: {name} -->\n"
    )
}

/// Returns the file `RECORD` of the wheel: all files with their hashes and sizes. `RECORD` itself
/// is listed without them. `info` is the folder with the metadata.
fn record(tree: &ArchiveFileTree, info: &str) -> String {
    let rows = tree.files().map(|(path, bytes)| {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(bytes));
        format!("{path},sha256={digest},{}\n", bytes.len())
    });
    rows.collect::<String>() + &format!("{info}/RECORD,,\n")
}
