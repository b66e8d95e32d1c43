//! Appends small programs to the server's executable, so that a copy of one file is a complete
//! toolgate.
//!
//! Each appended part consists of its bytes, their number in 8 bytes, and its name in 16 bytes. The
//! server searches the parts from the end of its file (world `programs/appended.rs: find_part`).

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::{fs, iter};

use anyhow::{Context, ensure};
use clap::Args;
use flate2::Compression;
use flate2::write::DeflateEncoder;

use crate::{read, write};

/// Length of the name that follows an appended part, in bytes. A shorter name is padded with zeros.
const NAME_BYTES: usize = 16;
/// Text that an executable contains only if it includes the grammars: the name of a node of Ruby's
/// syntax tree.
const GRAMMAR_MARK: &[u8] = b"heredoc_body_start";

/// Arguments of `toolgate-dist append`.
#[derive(Args)]
pub(crate) struct DistAppendArgs {
    /// Executable of the server
    #[arg(long, value_name = "FILE")]
    server: PathBuf,
    /// Program of the sandbox helpers, which is compressed
    #[arg(long, value_name = "FILE")]
    sandbox: PathBuf,
    /// Program that parses code, which is compressed
    #[arg(long, value_name = "FILE")]
    parser: PathBuf,
    /// File to write: the server with both programs
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Accept a server that contains the grammars itself, for tests
    #[arg(long)]
    with_grammars: bool,
}

/// Appends the sandbox and parser programs to the server executable, and writes the result. `args`
/// name all four files.
pub(crate) fn append(args: &DistAppendArgs) -> anyhow::Result<()> {
    let mut packed = read(&args.server)?;
    let parser = read(&args.parser)?;
    let has_grammars = |program: &[u8]| program.windows(GRAMMAR_MARK.len()).any(is_grammar_mark);
    ensure!(has_grammars(&parser), "{} contains no grammars", args.parser.display());
    ensure!(
        args.with_grammars || !has_grammars(&packed),
        "{} contains the grammars, which are for {} only",
        args.server.display(),
        args.parser.display()
    );
    let parser = compress(&parser)?;
    let hash = blake3::hash(&parser);
    push_part(&mut packed, &[hash.as_bytes(), &parser[..]].concat(), "toolgate-parser");
    push_part(&mut packed, &compress(&read(&args.sandbox)?)?, "toolgate-sandbox");
    write(&args.out, &packed)?;
    fs::set_permissions(&args.out, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", args.out.display()))
}

fn is_grammar_mark(window: &[u8]) -> bool {
    window == GRAMMAR_MARK
}

/// Appends to `file`: the bytes `part`, their number, and `name`.
fn push_part(file: &mut Vec<u8>, part: &[u8], name: &str) {
    file.extend_from_slice(part);
    file.extend_from_slice(&(part.len() as u64).to_le_bytes());
    file.extend(name.bytes().chain(iter::repeat(0)).take(NAME_BYTES));
}

/// Compresses `program` (deflate). World reads the sandbox helper with `copy_to_memory` of
/// `sandbox/helper_executable.rs`. `unpack` of `processes/packed_program.rs` reads the parser, which
/// follows the hash (BLAKE3) of its compressed bytes.
fn compress(program: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
    packed.write_all(program)?;
    Ok(packed.finish()?)
}
