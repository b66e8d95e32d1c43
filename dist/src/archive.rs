//! Trees of files that are written as tar or zip archives. Equal trees give equal bytes.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use anyhow::Context;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};
use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, DateTime};

/// Files and folders of an archive by their path, without a leading slash.
#[derive(Default)]
pub(crate) struct ArchiveFileTree {
    nodes: BTreeMap<String, ArchiveTreeNode>,
}

/// File or folder in an archive, with its mode and owner.
struct ArchiveTreeNode {
    mode: u32,
    /// Number of the user and of the group that own the file or folder.
    owner: u64,
    content: ArchiveNodeContent,
}

/// Content of a file in an archive, or a mark of a folder.
enum ArchiveNodeContent {
    File(Vec<u8>),
    Folder,
}

/// Prefix of the paths in a tar archive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TarPathStyle {
    /// Paths without a prefix, such as `usr/bin/toolgate`.
    Plain,
    /// Paths with the prefix `./`, such as `./usr/bin/toolgate`, and an entry for the root, as in
    /// Debian packages.
    Dotted,
}

/// Compression level of an archive, from 0 (none) to 9 (smallest).
#[derive(Clone, Copy)]
pub(crate) struct CompressionLevel(pub(crate) u32);

impl ArchiveFileTree {
    /// Adds a file at `path` that everybody may read.
    pub(crate) fn file(&mut self, path: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.insert(path.into(), 0o644, 0, ArchiveNodeContent::File(bytes.into()));
    }

    /// Adds an executable file at `path` that everybody may run.
    pub(crate) fn program(&mut self, path: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.insert(path.into(), 0o755, 0, ArchiveNodeContent::File(bytes.into()));
    }

    /// Adds a folder at `path` with the permissions `mode` and the user and group number `owner`.
    pub(crate) fn folder(&mut self, path: impl Into<String>, mode: u32, owner: u64) {
        self.insert(path.into(), mode, owner, ArchiveNodeContent::Folder);
    }

    /// Returns the files in order of their paths, each as its path and its content. Leaves folders
    /// out.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.nodes.iter().filter_map(|(path, node)| match &node.content {
            ArchiveNodeContent::File(bytes) => Some((path.as_str(), bytes.as_slice())),
            ArchiveNodeContent::Folder => None,
        })
    }

    /// Adds a file or folder at `path`, and the missing folders above it.
    fn insert(&mut self, path: String, mode: u32, owner: u64, content: ArchiveNodeContent) {
        let above = path.match_indices('/').map(|(at, _)| path[..at].to_owned());
        for folder in above {
            let folder_node =
                || ArchiveTreeNode { mode: 0o755, owner: 0, content: ArchiveNodeContent::Folder };
            self.nodes.entry(folder).or_insert_with(folder_node);
        }
        self.nodes.insert(path, ArchiveTreeNode { mode, owner, content });
    }

    /// Returns a tar archive of all files and folders. Every entry has the time `epoch`, in seconds
    /// since 1970.
    pub(crate) fn tar(&self, epoch: u64, style: TarPathStyle) -> anyhow::Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        let prefix = if style == TarPathStyle::Dotted { "./" } else { "" };
        if style == TarPathStyle::Dotted {
            let root =
                ArchiveTreeNode { mode: 0o755, owner: 0, content: ArchiveNodeContent::Folder };
            append(&mut builder, "./", &root, epoch)?;
        }
        for (path, node) in &self.nodes {
            let slash = if matches!(node.content, ArchiveNodeContent::Folder) { "/" } else { "" };
            append(&mut builder, &format!("{prefix}{path}{slash}"), node, epoch)?;
        }
        Ok(builder.into_inner()?)
    }

    /// Returns a zip archive of the files. Every entry has the oldest time that the format allows.
    pub(crate) fn zip(&self, level: CompressionLevel) -> anyhow::Result<Vec<u8>> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (path, node) in &self.nodes {
            let ArchiveNodeContent::File(bytes) = &node.content else { continue };
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Deflated)
                .compression_level(Some(i64::from(level.0)))
                .last_modified_time(DateTime::default())
                .unix_permissions(node.mode);
            writer.start_file(path.as_str(), options)?;
            writer.write_all(bytes)?;
        }
        Ok(writer.finish()?.into_inner())
    }
}

fn append(
    builder: &mut Builder<Vec<u8>>,
    path: &str,
    node: &ArchiveTreeNode,
    epoch: u64,
) -> anyhow::Result<()> {
    let mut header = Header::new_gnu();
    let bytes: &[u8] = match &node.content {
        ArchiveNodeContent::File(bytes) => bytes,
        ArchiveNodeContent::Folder => &[],
    };
    header.set_entry_type(match node.content {
        ArchiveNodeContent::File(_) => EntryType::Regular,
        ArchiveNodeContent::Folder => EntryType::Directory,
    });
    header.set_size(bytes.len() as u64);
    header.set_mode(node.mode);
    header.set_mtime(epoch);
    header.set_uid(node.owner);
    header.set_gid(node.owner);
    // `Header::set_path` drops the dot of `./`, which belongs to the form of Debian packages.
    let name = path.as_bytes();
    let field = header.as_old_mut().name.get_mut(..name.len());
    field
        .with_context(|| format!("the path {path} is too long for an archive"))?
        .copy_from_slice(name);
    header.set_cksum();
    Ok(builder.append(&header, bytes)?)
}

/// Compresses `bytes` as gzip, without a file name or time in its header.
pub(crate) fn gzip(bytes: &[u8], level: CompressionLevel) -> anyhow::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::new(level.0));
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ArchiveFileTree {
        let mut tree = ArchiveFileTree::default();
        tree.program("usr/bin/toolgate", "binary");
        tree.file("etc/toolgate.toml", "# settings\n");
        tree.folder("tmp", 0o1777, 0);
        tree
    }

    #[test]
    fn a_tar_archive_lists_folders_before_their_files_in_order() {
        let bytes = sample().tar(7, TarPathStyle::Dotted).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap()), (7, 0));
            let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            format!("{:o} {path}", header.mode().unwrap())
        });
        let expected = [
            "755 ./",
            "755 ./etc/",
            "644 ./etc/toolgate.toml",
            "1777 ./tmp/",
            "755 ./usr/",
            "755 ./usr/bin/",
            "755 ./usr/bin/toolgate",
        ];
        assert_eq!(entries.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_zip_archive_keeps_content_and_modes() {
        use std::io::Read;
        let bytes = sample().zip(CompressionLevel(9)).unwrap();
        let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        let mut program = archive.by_name("usr/bin/toolgate").unwrap();
        let mut text = String::new();
        program.read_to_string(&mut text).unwrap();
        assert_eq!(text, "binary");
        assert_eq!(program.unix_mode().map(|mode| mode & 0o777), Some(0o755));
    }

    #[test]
    fn a_path_that_no_archive_can_hold_is_an_error() {
        let mut tree = ArchiveFileTree::default();
        tree.file("a".repeat(120), "");
        let err = tree.tar(0, TarPathStyle::Plain).unwrap_err();
        assert!(err.to_string().contains("too long"), "{err}");
    }
}
