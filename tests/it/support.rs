//! What the tests share.

pub(crate) mod conversations;
pub(crate) mod validator;
