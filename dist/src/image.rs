//! Writes an OCI image from scratch: the binary, the C library that it needs, and certificates. The
//! image has no shell and no other programs.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::archive::{ArchiveFileTree, CompressionLevel, TarPathStyle, gzip};
use crate::read;
use crate::release::{LICENSE, PlatformRelease, SUMMARY, VERSION, sha256_hex};

/// Number of the user and of the group that run the server in the image.
const USER: u64 = 65532;

/// Path of the file with the certificates of public authorities, without a leading slash.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Blob of the OCI image: its media type, digest and bytes.
struct ImageBlob {
    media_type: &'static str,
    digest: String,
    bytes: Vec<u8>,
}

impl ImageBlob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        Self { media_type, digest: sha256_hex(&bytes), bytes }
    }

    fn json(media_type: &'static str, value: &Value) -> anyhow::Result<Self> {
        Ok(Self::new(media_type, serde_json::to_vec(value)?))
    }

    /// Returns the path of the blob in the image layout.
    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }

    fn descriptor(&self) -> Value {
        json!({
            "mediaType": self.media_type,
            "digest": format!("sha256:{}", self.digest),
            "size": self.bytes.len(),
        })
    }
}

/// Returns the file name and the bytes of the image layout, a tar archive.
pub(crate) fn pack(release: &PlatformRelease) -> anyhow::Result<(String, Vec<u8>)> {
    let root = root_files(release)?.tar(release.epoch, TarPathStyle::Plain)?;
    let root_digest = sha256_hex(&root);
    let layer = "application/vnd.oci.image.layer.v1.tar+gzip";
    let layer = ImageBlob::new(layer, gzip(&root, release.level)?);
    let config = image_config(release, &root_digest)?;
    let config = ImageBlob::json("application/vnd.oci.image.config.v1+json", &config)?;
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": manifest_type,
        "config": config.descriptor(),
        "layers": [layer.descriptor()],
        "annotations": labels(release),
    });
    let manifest = ImageBlob::json(manifest_type, &manifest)?;
    let name = format!("toolgate:{VERSION}");
    let mut in_index = manifest.descriptor();
    in_index["platform"] = json!({ "os": "linux", "architecture": release.target.debian });
    in_index["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{name}"),
        "org.opencontainers.image.ref.name": VERSION,
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [in_index],
    });
    // Engines that do not read the layout, such as Docker before version 25, read this file.
    let for_older_engines =
        json!([{ "Config": config.path(), "RepoTags": [name], "Layers": [layer.path()] }]);
    let mut tree = ArchiveFileTree::default();
    tree.file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    tree.file("index.json", serde_json::to_vec(&index)?);
    tree.file("manifest.json", serde_json::to_vec(&for_older_engines)?);
    for blob in [layer, config, manifest] {
        tree.file(blob.path(), blob.bytes);
    }
    Ok((format!("{}.oci.tar", release.stem()), tree.tar(release.epoch, TarPathStyle::Plain)?))
}

/// Returns the files of the image's root file system.
fn root_files(release: &PlatformRelease) -> anyhow::Result<ArchiveFileTree> {
    let mut tree = ArchiveFileTree::default();
    tree.program("usr/bin/toolgate", release.binary.as_slice());
    let machine = release.target.machine;
    for (path, bytes) in release.needs.collect_libraries(&release.sysroot, machine)? {
        tree.program(path.display().to_string().trim_start_matches('/'), bytes);
    }
    tree.file(CERTIFICATES, read(&release.sysroot.join(CERTIFICATES))?);
    let user = "toolgate:x:65532:65532:toolgate:/home/toolgate:/nonexistent\n";
    tree.file("etc/passwd", format!("root:x:0:0:root:/root:/nonexistent\n{user}"));
    tree.file("etc/group", "root:x:0:\ntoolgate:x:65532:\n");
    tree.file("etc/nsswitch.conf", "hosts: files dns\n");
    tree.folder("tmp", 0o1777, 0);
    // A new volume at one of these places takes over its owner.
    for folder in [
        "workspace",
        "home/toolgate",
        "home/toolgate/.cache",
        "home/toolgate/.local",
        "home/toolgate/.local/state",
    ] {
        tree.folder(folder, 0o755, USER);
    }
    let best = CompressionLevel(9);
    let others = gzip(release.other_licenses.as_bytes(), best)?;
    tree.file("usr/share/doc/toolgate/licenses-of-others.gz", others);
    tree.file("usr/share/doc/toolgate/copyright", release.license.as_slice());
    Ok(tree)
}

/// Returns the configuration of the image. `root_digest` is the SHA-256 of the uncompressed layer.
fn image_config(release: &PlatformRelease, root_digest: &str) -> anyhow::Result<Value> {
    let created = Timestamp::from_second(i64::try_from(release.epoch)?)?.to_string();
    Ok(json!({
        "created": created,
        "architecture": release.target.debian,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/bin", "HOME=/home/toolgate"],
            "Entrypoint": ["/usr/bin/toolgate"],
            "Cmd": ["stdio", "/workspace"],
            "WorkingDir": "/workspace",
            "ExposedPorts": { "8000/tcp": {} },
            "Labels": labels(release),
            // Not in the specification of OCI. Docker reads it there, and others ignore it. Times
            // are in nanoseconds.
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/toolgate", "healthcheck"],
                "Interval": 30_000_000_000_u64,
                "Timeout": 5_000_000_000_u64,
                "StartPeriod": 10_000_000_000_u64,
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{root_digest}")] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    }))
}

/// Returns the labels of the image. The MCP registry checks the first label.
fn labels(release: &PlatformRelease) -> Value {
    json!({
        "io.modelcontextprotocol.server.name": release.server_name,
        "org.opencontainers.image.title": "toolgate",
        "org.opencontainers.image.description": SUMMARY,
        "org.opencontainers.image.licenses": LICENSE,
        "org.opencontainers.image.source": release.source_url,
        "org.opencontainers.image.version": VERSION,
    })
}
