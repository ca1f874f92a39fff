//! Checks `[jwt]`. The keys are read here, so that an unusable file is found before a token arrives.

use std::path::Path;

use super::Check;
use crate::config::{
    JwtKey, JwtSettings, Sources,
    error::Diagnostic,
    file::{self, SpannedTable, ValueList},
    jwt,
};

/// The least length of a secret; a shorter one can be guessed from a token (RFC 7518, section 3.2).
const SECRET_BYTES: usize = 32;

impl Check<'_, '_> {
    /// Checks the table and reads the keys. `None` if there is an error.
    pub(super) fn jwt(&mut self, table: SpannedTable<file::JwtTable>, folder: &Path) -> Option<JwtSettings> {
        let SpannedTable { span, value } = table;
        let keys = match (value.jwks_file, value.hmac_secret) {
            (Some(path), None) => {
                let keys = keys_of(self.sources, folder, &path.get_ref().0);
                keys.map_err(|remedy| self.fault(Diagnostic::with_remedy(&remedy).at(&path.span(), "")))
                    .ok()?
            }
            (None, Some(secret)) => {
                let bytes = secret.get_ref().0.0.len();
                if bytes < SECRET_BYTES {
                    let fault = Diagnostic::warning(format!("a secret of `{bytes}` bytes can be guessed"));
                    self.fault(fault.at(&secret.span(), "").help("use at least 32 random bytes"));
                }
                vec![JwtKey::secret(&secret.get_ref().0.0)?]
            }
            (Some(path), Some(secret)) => {
                let fault = Diagnostic::error("[jwt] has both `jwks_file` and `hmac_secret`");
                let fault = fault.at(&secret.span(), "either this").at(&path.span(), "or this");
                self.fault(fault.help("remove one of the two"));
                return None;
            }
            (None, None) => {
                self.missing(&span, &["jwks_file", "hmac_secret"], "jwks_file = \"keys.json\"");
                return None;
            }
        };
        let issuers = value.issuer.map_or_else(Vec::new, ValueList::into_values);
        let audiences = value.audience.map_or_else(Vec::new, ValueList::into_values);
        Some(JwtSettings { keys, issuers, audiences })
    }
}

/// Reads the keys of a file. An error is a message and a line that says how to fix it.
fn keys_of(sources: &mut Sources, folder: &Path, path: &str) -> Result<Vec<JwtKey>, String> {
    let text = sources.read(folder.join(path)).map_err(|error| {
        format!("can't read `{path}`: {error}\nname a readable JWKS file, relative to the folder of the configuration")
    })?;
    // The parser's message could quote a key, so only the position is shown.
    let keys = jwt::read_jwks(&text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("`{path}` is not a valid JWKS: line {line}, column {column}\nwrite {{ \"keys\": [ … ] }}, as the issuer of the tokens publishes it")
    })?;
    if keys.is_empty() {
        return Err(format!(
            "`{path}` contains no key that can verify signatures\nadd a public key of type RSA, EC (P-256, P-384) or OKP (Ed25519)"
        ));
    }
    Ok(keys)
}
