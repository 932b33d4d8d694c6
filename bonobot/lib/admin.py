"""The look of the admin: the only module that imports `unfold`.

Everything else takes its admin classes, decorators, widgets and filters from here, so that another
theme (or none) is a change of one file.
"""

from django.contrib.admin import AdminSite, register, site
from unfold.admin import (
    GenericStackedInline,
    GenericTabularInline,
    ModelAdmin,
    StackedInline,
    TabularInline,
)
from unfold.contrib.filters.admin import (
    ChoicesDropdownFilter,
    FieldTextFilter,
    MultipleChoicesDropdownFilter,
    MultipleRelatedDropdownFilter,
    RangeDateTimeFilter,
    RangeNumericFilter,
    RelatedDropdownFilter,
    SingleNumericFilter,
    TextFilter,
)
from unfold.dataclasses import ActionDialog
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.forms import AdminPasswordChangeForm, BaseDialogForm, UserChangeForm, UserCreationForm
from unfold.sections import TableSection, TemplateSection
from unfold.views import UnfoldModelAdminViewMixin
from unfold.widgets import (
    UnfoldAdminPasswordToggleWidget,
    UnfoldAdminRadioSelectWidget,
    UnfoldAdminSelect2MultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldAdminURLInputWidget,
    UnfoldBooleanSwitchWidget,
)

__all__ = [
    "ActionDialog",
    "ActionVariant",
    "AdminPasswordChangeForm",
    "AdminSite",
    "BaseDialogForm",
    "ChoicesDropdownFilter",
    "FieldTextFilter",
    "GenericStackedInline",
    "GenericTabularInline",
    "ModelAdmin",
    "MultipleChoicesDropdownFilter",
    "MultipleRelatedDropdownFilter",
    "RangeDateTimeFilter",
    "RangeNumericFilter",
    "RelatedDropdownFilter",
    "SingleNumericFilter",
    "StackedInline",
    "TableSection",
    "TabularInline",
    "TemplateSection",
    "TextFilter",
    "UnfoldAdminPasswordToggleWidget",
    "UnfoldAdminRadioSelectWidget",
    "UnfoldAdminSelect2MultipleWidget",
    "UnfoldAdminSelectWidget",
    "UnfoldAdminTextInputWidget",
    "UnfoldAdminTextareaWidget",
    "UnfoldAdminURLInputWidget",
    "UnfoldBooleanSwitchWidget",
    "UnfoldModelAdminViewMixin",
    "UserChangeForm",
    "UserCreationForm",
    "action",
    "display",
    "register",
    "site",
]
