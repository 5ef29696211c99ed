//! What the engine does where the world does not help.

use super::*;
use crate::conversation::Conversation;
use crate::dialect;
use crate::planner::{Parts, Settings};
use crate::replay::Scene;
use crate::tokens;
