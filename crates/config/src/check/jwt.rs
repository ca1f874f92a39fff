//! Checks `[jwt]`. The keys are read here, so that an unusable file is found before a token arrives.

use std::{ops::Range, path::Path, sync::Arc};

use tollgate_limiter::ClientTls;

use super::Check;
use crate::{
    JwksUrl, JwtKey, JwtSettings, KeyPart, Sources,
    error::Diagnostic,
    file::{self, Pairs, Spanned, SpannedTable, ValueList},
    jwt,
    value::{JwksLocation, ParsedText, RefreshTime},
};

/// The least length of a secret; a shorter one can be guessed from a token (RFC 7518, section 3.2).
const SECRET_BYTES: usize = 32;

impl Check<'_, '_> {
    /// Checks the table and reads the keys. `None` if there is an error.
    pub(super) fn jwt(&mut self, table: SpannedTable<file::JwtTable>) -> Option<JwtSettings> {
        let SpannedTable { span, value } = table;
        self.check_one_source(&value)?;
        let (mut keys, mut published) = (Vec::new(), None);
        if let Some(path) = &value.jwks_file {
            keys = self.read_file(&path.get_ref().0, &path.span(), keys_of)?;
            self.warn_of_short_secrets(&keys, &path.span());
        } else if let Some(secret) = &value.hmac_secret {
            let text = &secret.get_ref().0.0;
            if text.starts_with("-----BEGIN") && !text.contains("PRIVATE KEY") {
                let fault = Diagnostic::error("`hmac_secret` is a public key, so anyone could sign tokens");
                let help = "put the key into a JWKS file: jwks_file = \"keys.json\"";
                self.fault(fault.at(&secret.span(), "").help(help));
            }
            keys.push(JwtKey::secret(text)?);
            self.warn_of_short_secrets(&keys, &secret.span());
        } else if let Some(url) = value.jwks_url {
            published = Some(Arc::new(self.jwks_url(url, value.refresh.as_ref())?));
        } else {
            self.missing(&span, &["jwks_file", "jwks_url", "hmac_secret"], "jwks_file = \"keys.json\"");
            return None;
        }
        self.refuse_empty("issuer", value.issuer.as_ref());
        self.refuse_empty("audience", value.audience.as_ref());
        let issuers = value.issuer.map_or_else(Vec::new, ValueList::into_values);
        let audiences = value.audience.map_or_else(Vec::new, ValueList::into_values);
        Some(JwtSettings { keys, published, issuers, audiences })
    }

    /// Checks the claims that a route compares.
    pub(super) fn check_compared_claims(&mut self, claims: &Pairs<String, String>) {
        if let Some((claim, _)) = claims.0.first() {
            let why = "claims can only be compared once they are verified";
            self.check_verifies("claims", &claim.span(), why);
        }
        for (claim, _) in &claims.0 {
            self.warn_of_dots(claim.get_ref(), &claim.span(), "");
        }
    }

    /// Warns of a part of a key with the path of a nested claim in the form of other programs.
    pub(super) fn warn_of_dotted_claim(&mut self, part: &KeyPart, place: &Range<usize>) {
        if let KeyPart::Jwt(claim) = part {
            self.warn_of_dots(claim, place, "jwt:");
        }
    }

    /// Warns of the name of a claim with dots, which don't lead to a nested one.
    fn warn_of_dots(&mut self, claim: &str, place: &Range<usize>, prefix: &str) {
        let is_path = claim.contains('.')
            && !claim.contains(['/', ':'])
            && claim.split('.').all(|name| !name.is_empty());
        if is_path {
            let fault = Diagnostic::warning(format!("`{claim}` is one claim with a dot in its name"));
            let nested = claim.replace('.', "/");
            self.fault(
                fault
                    .at(place, "")
                    .help(format!("for a nested claim write \"{prefix}/{nested}\""))
                    .help(format!("if that is its name, write \"{prefix}/{claim}\"")),
            );
        }
    }

    /// Reports empty names.
    fn refuse_empty(&mut self, key: &str, names: Option<&ValueList<String>>) {
        for name in names.into_iter().flat_map(|names| &names.0).filter(|name| name.get_ref().is_empty()) {
            let fault = Diagnostic::error(format!("an empty `{key}` matches no token")).at(&name.span(), "");
            self.fault(fault.help("leave the key out to accept any"));
        }
    }

    fn warn_of_short_secrets(&mut self, keys: &[JwtKey], place: &Range<usize>) {
        let shortest = keys.iter().filter_map(JwtKey::secret_bytes).min();
        if let Some(bytes) = shortest.filter(|bytes| *bytes < SECRET_BYTES) {
            let fault = Diagnostic::warning(format!("a secret of `{bytes}` bytes can be guessed"));
            self.fault(fault.at(place, "").help("use at least 32 random bytes"));
        }
    }

    /// Reports a second source of keys, and a time to refresh those that aren't fetched.
    fn check_one_source(&mut self, value: &file::JwtTable) -> Option<()> {
        let sources = [
            ("jwks_file", value.jwks_file.as_ref().map(Spanned::span)),
            ("jwks_url", value.jwks_url.as_ref().map(Spanned::span)),
            ("hmac_secret", value.hmac_secret.as_ref().map(Spanned::span)),
        ];
        let mut given = sources.into_iter().filter_map(|(key, place)| Some((key, place?)));
        let (first, second) = (given.next(), given.next());
        if let (Some((key, place)), Some((other, other_place))) = (&first, &second) {
            let fault = Diagnostic::error(format!("[jwt] has both `{key}` and `{other}`"));
            let fault = fault.at(other_place, "either this").at(place, "or this");
            self.fault(fault.help("remove one of the two"));
            return None;
        }
        let is_fetched = first.is_none_or(|(key, _)| key == "jwks_url");
        if let Some(refresh) = value.refresh.as_ref().filter(|_| !is_fetched) {
            let fault = Diagnostic::error("`refresh` is only for `jwks_url`").at(&refresh.span(), "");
            self.fault(fault.help("remove it: a reload reads the other sources of keys again"));
        }
        Some(())
    }

    /// Returns the URL of the keys. `None` if the system has no certificates to verify the server with.
    fn jwks_url(
        &mut self,
        url: Spanned<ParsedText<JwksLocation>>,
        refresh: Option<&Spanned<ParsedText<RefreshTime>>>,
    ) -> Option<JwksUrl> {
        let place = url.span();
        let JwksLocation { server, target } = url.into_inner().0;
        if target.path().trim_end_matches('/').ends_with("openid-configuration") {
            let fault =
                Diagnostic::warning("this document has no keys, but names their place").at(&place, "");
            self.fault(fault.help("write the URL that it has as `jwks_uri`"));
        }
        let tls = server.is_tls().then(ClientTls::default);
        if let Some(Err(_)) = tls.as_ref().map(ClientTls::client) {
            let fault = "this system has no root certificates to verify the issuer with";
            let fault = Diagnostic::error(fault).at(&place, "");
            self.fault(fault.help("install them (the package is often called ca-certificates)"));
            return None;
        }
        let RefreshTime(refresh) = refresh.map(|refresh| refresh.get_ref().0).unwrap_or_default();
        Some(JwksUrl { server, target, tls, refresh })
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
