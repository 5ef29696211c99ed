//! What steps answer with. Everything that is none of that is damaged.

use redis::Value;

use crate::store::engine::EngineError;

/// A value that is read from an answer.
pub(super) trait Answer {
    fn items(&self) -> Result<&[Value], EngineError>;

    /// A number; a negative one is none.
    fn number(&self) -> Result<u64, EngineError>;

    /// Bytes, if there are any.
    fn bytes(&self) -> Result<Option<Vec<u8>>, EngineError>;

    /// A name.
    fn key(&self) -> Result<[u8; 16], EngineError> {
        self.bytes()?.and_then(|key| key.try_into().ok()).ok_or(EngineError::Damaged)
    }

    /// A body, if there is one, and a mark.
    fn body_and_mark(&self) -> Result<Option<(Vec<u8>, bool)>, EngineError> {
        let [body, mark] = self.items()? else { return Err(EngineError::Damaged) };
        let mark = mark.number()? == 1;
        Ok(body.bytes()?.map(|body| (body, mark)))
    }
}

impl Answer for Value {
    fn items(&self) -> Result<&[Value], EngineError> {
        match self {
            Self::Array(items) => Ok(items),
            _ => Err(EngineError::Damaged),
        }
    }

    fn number(&self) -> Result<u64, EngineError> {
        match self {
            Self::Int(n) => Ok(u64::try_from(*n).unwrap_or_default()),
            _ => Err(EngineError::Damaged),
        }
    }

    fn bytes(&self) -> Result<Option<Vec<u8>>, EngineError> {
        match self {
            Self::Nil => Ok(None),
            Self::BulkString(bytes) => Ok(Some(bytes.clone())),
            _ => Err(EngineError::Damaged),
        }
    }
}
