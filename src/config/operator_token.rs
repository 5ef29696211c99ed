//! The operators' token that abridge makes where the settings name none: a file that this user alone can read.

use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::Secret;
use crate::platform::files::{NO_STATE_FOLDER, is_private_file, private_file, private_folder};

/// The name of the file in the folder of the store.
const NAME: &str = "operator-token";

/// The bytes of a token; it is written in hexadecimal digits.
const TOKEN_BYTES: usize = 32;

/// The path of the file below a user's state folder.
pub fn path(state: &Path) -> PathBuf {
    state.join("abridge").join(NAME)
}

/// The token in the file, if there is one that only its owner can read.
pub fn read(state: Option<&Path>) -> io::Result<Option<Secret>> {
    let Some(state) = state else { return Ok(None) };
    let path = path(state);
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        metadata => metadata?,
    };
    let damaged = |what: &str| io::Error::other(format!("{} {what}; remove it", path.display()));
    if !is_private_file(&metadata) {
        return Err(damaged("is not a file of mode 0600"));
    }
    let mut text = Zeroizing::new(String::new());
    std::fs::File::open(&path)?.take(4 * TOKEN_BYTES as u64).read_to_string(&mut text)?;
    let token = text.trim();
    if token.len() != 2 * TOKEN_BYTES || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(damaged("holds no token"));
    }
    Ok(Some(Secret::new(token)))
}

/// The token in the file, which is made if need be. If that is not possible, a token that is in memory alone, and why; none if
/// the system gives no random bytes.
pub(super) fn make(state: Option<&Path>) -> (Option<Secret>, io::Result<()>) {
    match state.ok_or_else(|| io::Error::other(NO_STATE_FOLDER)).and_then(kept) {
        Ok(token) => (Some(token), Ok(())),
        Err(error) => (random().ok(), Err(error)),
    }
}

/// The token in the file, or a new one that has been written there.
fn kept(state: &Path) -> io::Result<Secret> {
    if let Some(token) = read(Some(state))? {
        return Ok(token);
    }
    let (path, token) = (path(state), random()?);
    let folder = path.parent().unwrap_or(state);
    private_folder().recursive(true).create(folder)?;
    // Written beside it and linked: of processes that start at once one makes the token, and no one reads half of it.
    let own = folder.join(format!(".{NAME}-{}", std::process::id()));
    // A process of the same number may have left one.
    let _none = std::fs::remove_file(&own);
    let mut file = private_file().write(true).create_new(true).open(&own)?;
    let written = file.write_all(format!("{}\n", token.expose()).as_bytes()).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| std::fs::hard_link(&own, &path));
    std::fs::remove_file(&own)?;
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            read(Some(state))?.ok_or_else(|| io::Error::other("the file of the token was removed"))
        }
        linked => linked.map(|()| token),
    }
}

fn random() -> io::Result<Secret> {
    let mut bytes = Zeroizing::new([0; TOKEN_BYTES]);
    getrandom::getrandom(&mut *bytes)?;
    Ok(Secret::new(&Zeroizing::new(blake3::Hash::from_bytes(*bytes).to_hex().to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_kept_in_a_private_file() {
        let state = tempfile::tempdir().unwrap();
        assert!(read(Some(state.path())).unwrap().is_none());
        let (made, kept) = make(Some(state.path()));
        kept.unwrap();
        let at = state.path().join("abridge/operator-token");
        assert!(is_private_file(&at.symlink_metadata().unwrap()));
        assert_eq!(make(Some(state.path())).0, made);
        assert_eq!(read(Some(state.path())).unwrap(), made);
        assert_eq!(std::fs::read_dir(at.parent().unwrap()).unwrap().count(), 1, "nothing else is left there");
    }

    #[test]
    fn a_file_that_is_damaged_or_that_others_can_read_is_not_used_and_not_overwritten() {
        let state = tempfile::tempdir().unwrap();
        let (Some(made), Ok(())) = make(Some(state.path())) else { panic!("no token") };
        let at = path(state.path());
        for damage in ["", "short", &"g".repeat(64), &"0".repeat(1000)] {
            std::fs::write(&at, damage).unwrap();
            assert!(read(Some(state.path())).unwrap_err().to_string().contains("holds no token"), "{damage}");
            let (other, kept) = make(Some(state.path()));
            assert!(kept.is_err() && other.is_some_and(|other| other != made));
            assert_eq!(std::fs::read_to_string(&at).unwrap(), damage);
        }
        assert!(matches!(make(None), (Some(_), Err(_))), "without a state folder there is one in memory");
        std::fs::remove_file(&at).unwrap();
        std::fs::create_dir(&at).unwrap();
        assert!(read(Some(state.path())).is_err());
    }
}
