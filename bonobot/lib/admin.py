"""The look of the admin: the only module that imports `unfold`.

Everything else takes its admin classes, decorators, widgets and filters from here, so that another
theme (or none) is a change of one file.
"""

from django.contrib.admin import register, site
from unfold.admin import ModelAdmin, StackedInline, TabularInline
from unfold.contrib.filters.admin import (
    ChoicesDropdownFilter,
    DropdownFilter,
    FieldTextFilter,
    MultipleChoicesDropdownFilter,
    RangeDateTimeFilter,
    RangeNumericFilter,
    RelatedDropdownFilter,
    TextFilter,
)
from unfold.decorators import action, display
from unfold.forms import (
    AdminPasswordChangeForm,
    AuthenticationForm,
    UserChangeForm,
    UserCreationForm,
)
from unfold.sites import UnfoldAdminSite as AdminSite
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget as IntegerInput,
)
from unfold.widgets import (
    UnfoldAdminPasswordWidget as PasswordInput,
)
from unfold.widgets import (
    UnfoldAdminRadioSelectWidget as RadioSelect,
)
from unfold.widgets import (
    UnfoldAdminSelectMultipleWidget as SelectMultiple,
)
from unfold.widgets import (
    UnfoldAdminSelectWidget as Select,
)
from unfold.widgets import (
    UnfoldAdminSplitDateTimeWidget as SplitDateTime,
)
from unfold.widgets import (
    UnfoldAdminTextareaWidget as Textarea,
)
from unfold.widgets import (
    UnfoldAdminTextInputWidget as TextInput,
)
from unfold.widgets import (
    UnfoldBooleanSwitchWidget as Switch,
)
from unfold.widgets import (
    UnfoldBooleanWidget as Checkbox,
)

__all__ = [
    "AdminPasswordChangeForm",
    "AdminSite",
    "AuthenticationForm",
    "Checkbox",
    "ChoicesDropdownFilter",
    "DropdownFilter",
    "FieldTextFilter",
    "IntegerInput",
    "ModelAdmin",
    "MultipleChoicesDropdownFilter",
    "PasswordInput",
    "RadioSelect",
    "RangeDateTimeFilter",
    "RangeNumericFilter",
    "RelatedDropdownFilter",
    "Select",
    "SelectMultiple",
    "SplitDateTime",
    "StackedInline",
    "Switch",
    "TabularInline",
    "TextFilter",
    "TextInput",
    "Textarea",
    "UserChangeForm",
    "UserCreationForm",
    "action",
    "display",
    "register",
    "site",
]
