//! What steps answer with; `None` if it is something else.

use redis::Value;

/// What is read from an answer.
pub(super) trait Answer {
    fn items(&self) -> Option<&[Value]>;

    /// A number; a negative one is none.
    fn number(&self) -> Option<u64>;

    /// Bytes, if there are any.
    fn bytes(&self) -> Option<Option<Vec<u8>>>;

    /// A name.
    fn key(&self) -> Option<[u8; 16]>;

    /// A body, if there is one, and a mark.
    fn body_and_mark(&self) -> Option<Option<(Vec<u8>, bool)>>;
}

impl Answer for Value {
    fn items(&self) -> Option<&[Value]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    fn number(&self) -> Option<u64> {
        match self {
            Self::Int(n) => Some(u64::try_from(*n).unwrap_or_default()),
            _ => None,
        }
    }

    fn bytes(&self) -> Option<Option<Vec<u8>>> {
        match self {
            Self::Nil => Some(None),
            Self::BulkString(bytes) => Some(Some(bytes.clone())),
            _ => None,
        }
    }

    fn key(&self) -> Option<[u8; 16]> {
        self.bytes()??.try_into().ok()
    }

    fn body_and_mark(&self) -> Option<Option<(Vec<u8>, bool)>> {
        let [body, mark] = self.items()? else { return None };
        let mark = mark.number()? == 1;
        Some(body.bytes()?.map(|body| (body, mark)))
    }
}
