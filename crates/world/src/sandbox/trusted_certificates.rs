//! The certificates that a program trusts if its forwarder decrypts TLS.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;

use tempfile::TempDir;

use super::capabilities::ServerEnvironmentVariables;
use super::{ProgramConfinement, Sandbox};
use crate::forwarder::{ProgramHostAccess, TlsInspector};

/// A file with the certificates that one program trusts. Dropping this value removes the file.
pub(super) struct TrustedCertificatesFile {
    /// The path of the file, which is the same inside and outside the sandbox.
    pub(super) path: PathBuf,
    _folder: TempDir,
}

impl Sandbox {
    /// Prepares the decryption of a program's TLS connections by its forwarder. Returns `None` if
    /// no rule in `access` has a path and no credential is for the program's hosts. `variables` is
    /// the server's environment.
    pub(super) fn prepare_inspection(
        &self,
        inside: &ProgramConfinement,
        access: &ProgramHostAccess,
        variables: &ServerEnvironmentVariables,
    ) -> io::Result<Option<(TlsInspector, TrustedCertificatesFile)>> {
        let variable = |name: &str| {
            let value = variables.get(OsStr::new(name))?;
            value.to_str().map(str::to_owned)
        };
        let inspector = TlsInspector::for_run(access, &self.0.credentials, variable)?;
        let Some(inspector) = inspector else { return Ok(None) };
        let folder = self.create_run_folder(inside, variables, "toolgate-trust-")?;
        let path = folder.path().canonicalize()?.join("certificates.pem");
        fs::write(&path, inspector.trusted_certificates())?;
        Ok(Some((inspector, TrustedCertificatesFile { path, _folder: folder })))
    }
}
